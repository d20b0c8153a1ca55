//! A headless Chromium, spoken to by the DevTools protocol through two pipes.

#![allow(unreachable_pub, reason = "each test program uses a part of it")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// How long a page may take to be drawn; far more than it does anywhere.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program, if this machine has it: `CHROMIUM`, or one of the usual names in `PATH`.
pub fn chromium() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("CHROMIUM") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    let all = std::env::split_paths(&path);
    let mut candidates = all.flat_map(|folder| NAMES.map(|name| folder.join(name)));
    candidates.find(|candidate| candidate.is_file())
}

pub struct Browser {
    child: Child,
    to: File,
    from: File,
    received: Vec<u8>,
    next: u64,
    session: Option<String>,
    /// What it told unasked.
    pub events: Vec<Value>,
    _folder: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Browser {
    pub fn start(program: &Path) -> Browser {
        let folder = tempfile::tempdir().unwrap();
        let pipe = |name| {
            let path = folder.path().join(name);
            let made = Command::new("mkfifo").arg(&path).status().unwrap();
            assert!(made.success());
            path
        };
        let (requests, answers) = (pipe("requests"), pipe("answers"));
        // The browser reads its requests from file 3, and answers on file 4.
        let child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<\"$REQUESTS\" 4>\"$ANSWERS\"", "sh"])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg("about:blank")
            .env("REQUESTS", &requests)
            .env("ANSWERS", &answers)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut browser = Browser {
            child,
            to: File::options().write(true).open(&requests).unwrap(),
            from: File::open(&answers).unwrap(),
            received: Vec::new(),
            next: 0,
            session: None,
            events: Vec::new(),
            _folder: folder,
        };
        let targets = browser.call("Target.getTargets", &json!({}));
        let targets = targets["targetInfos"].as_array().unwrap();
        let page = targets.iter().find(|t| t["type"] == "page").unwrap();
        let target = page["targetId"].clone();
        let attached = browser.call(
            "Target.attachToTarget",
            &json!({"targetId": target, "flatten": true}),
        );
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    pub fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.next += 1;
        let mut request = json!({"id": self.next, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        let mut bytes = serde_json::to_vec(&request).unwrap();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap();
        loop {
            let message = self.receive();
            if message["id"] == self.next {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn receive(&mut self) -> Value {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == 0) {
                let message = serde_json::from_slice(&self.received[..end]).unwrap();
                self.received.drain(..=end);
                return message;
            }
            let mut chunk = [0; 1 << 16];
            let got = self.from.read(&mut chunk).unwrap();
            assert!(got > 0, "the browser has ended");
            self.received.extend(&chunk[..got]);
        }
    }

    /// What a script comes to, awaited.
    pub fn evaluate(&mut self, script: &str) -> Value {
        let result = self.call(
            "Runtime.evaluate",
            &json!({"expression": script, "awaitPromise": true, "returnByValue": true}),
        );
        assert!(result["exceptionDetails"].is_null(), "{script}: {result}");
        result["result"]["value"].clone()
    }

    /// Opens a page; gives the milliseconds until it was drawn, by its own clock.
    pub fn open(&mut self, page: &Path, scheme: &str) -> f64 {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": 1240, "height": 900, "deviceScaleFactor": 1, "mobile": false}),
        );
        self.scheme(scheme);
        let address = format!("file://{}", page.display());
        self.call("Page.navigate", &json!({"url": address}));
        let begun = Instant::now();
        loop {
            let drawn = self.evaluate("document.documentElement?.dataset.drawn ?? ''");
            if let Ok(milliseconds) = drawn.as_str().unwrap().parse() {
                return milliseconds;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "the page is not drawn: {:?}",
                self.events
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// `light` or `dark`.
    pub fn scheme(&mut self, scheme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.call(
            "Emulation.setEmulatedMedia",
            &json!({"features": [feature]}),
        );
    }

    /// A picture of the upper part of the page.
    pub fn picture(&mut self, height: u32, to: &Path) {
        let clip = json!({"x": 0, "y": 0, "width": 1240, "height": height, "scale": 1});
        let picture = self.call(
            "Page.captureScreenshot",
            &json!({"format": "png", "captureBeyondViewport": true, "clip": clip}),
        );
        let bytes = STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        fs::write(to, bytes).unwrap();
    }

    /// Addresses that the page asked for, and what went wrong.
    pub fn requests_and_complaints(&self) -> (Vec<String>, Vec<String>) {
        let (mut requests, mut complaints) = (Vec::new(), Vec::new());
        for event in &self.events {
            let parameters = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Network.requestWillBeSent" => {
                    requests.push(parameters["request"]["url"].as_str().unwrap().to_owned());
                }
                "Runtime.exceptionThrown" | "Log.entryAdded" | "Runtime.consoleAPICalled" => {
                    complaints.push(parameters.to_string());
                }
                _ => {}
            }
        }
        (requests, complaints)
    }
}
