//! The C library as C and C++ programs meet it: installed, found by pkg-config, compiled against,
//! linked and run on the host device.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where the library was installed for these tests; once for all of them.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("millpond");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
        run(Command::new(script).arg("--debug").arg(&prefix));
        prefix
    })
}

/// Runs a command that must succeed, and gives its standard output.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program is there");
    assert!(
        output.status.success(),
        "{command:?} failed: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// What pkg-config says of the installed library.
fn flags(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command
        .env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"))
        .args(arguments)
        .arg("millpond");
    let flags = run(&mut command);
    flags.split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program against the shared library; gives it ready to be run.
fn compiled(compiler: &[&str], source: &Path, name: &str) -> Command {
    let program = prefix().join(name);
    run(Command::new(compiler[0])
        .args(&compiler[1..])
        .args(["-O1", "-Wall", "-Wextra", "-Werror"])
        .arg(source)
        .args(flags(&["--cflags", "--libs"]))
        .arg("-o")
        .arg(&program));
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", prefix().join("lib"));
    command
}

#[test]
fn the_c_example_runs() {
    let source = repository().join("examples/c/two_streams.c");
    let told = run(&mut compiled(&["cc", "-std=c99"], &source, "two_streams"));
    for expected in [
        "the copy ends with 0123456789abcdef",
        "it was freed already",
        "more than the limit of 64.0 MiB ever allows",
        "0 bytes reserved, 0 blocks live",
    ] {
        assert!(told.contains(expected), "{expected:?} is not in:\n{told}");
    }
}

#[test]
fn the_c_example_of_pools_runs() {
    let source = repository().join("examples/c/pools.c");
    let told = run(&mut compiled(&["cc", "-std=c99"], &source, "pools"));
    for expected in ["in live blocks", "the budget that the pool shares", "done"] {
        assert!(told.contains(expected), "{expected:?} is not in:\n{told}");
    }
}

#[test]
fn the_c_example_runs_with_the_static_library() {
    let program = prefix().join("two_streams_static");
    let private = flags(&["--static", "--libs-only-l"]);
    run(Command::new("cc")
        .arg("-std=c99")
        .arg(repository().join("examples/c/two_streams.c"))
        .arg(prefix().join("lib/libmillpond.a"))
        .args(flags(&["--cflags"]))
        .args(private.iter().filter(|flag| *flag != "-lmillpond"))
        .arg("-o")
        .arg(&program));
    let told = run(&mut Command::new(program));
    assert!(
        told.contains("the copy ends with 0123456789abcdef"),
        "{told}"
    );
}

#[test]
fn the_cpp_example_runs() {
    let source = repository().join("examples/c/resource.cpp");
    let told = run(&mut compiled(&["c++", "-std=c++17"], &source, "resource"));
    for expected in [
        "three steps, one piece of memory",
        "scratch memory is aligned: yes",
        "after 4 blocks: out of memory",
        "0 bytes reserved in the end",
    ] {
        assert!(told.contains(expected), "{expected:?} is not in:\n{told}");
    }
}

#[test]
fn pytorchs_pair_keeps_its_calling_convention() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native/torch_pair.cpp");
    let mut program = compiled(&["c++", "-std=c++17"], &source, "torch_pair");
    let told = run(program.env("MILLPOND_DEVICE", "host:64MiB"));
    assert!(told.contains("PyTorch's pair works"), "{told}");
}
