"use strict";
// Charts on canvas.

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit += 1; }
  return (unit === 0 ? bytes : bytes >= 100 ? bytes.toFixed(0) : bytes.toFixed(bytes >= 10 ? 1 : 2)) + " " + units[unit];
}

function duration(ns) {
  if (ns >= 7.2e12) return (ns / 3.6e12).toFixed(2) + " h";
  if (ns >= 1.2e11) return (ns / 6e10).toFixed(2) + " min";
  if (ns >= 1e9) return (ns / 1e9).toFixed(3) + " s";
  if (ns >= 1e6) return (ns / 1e6).toFixed(2) + " ms";
  return (ns / 1e3).toFixed(1) + " µs";
}

const count = (n) => Math.round(n).toLocaleString("en");

// A round step that cuts a range into a few parts; for bytes in powers of two.
function step(most, binary) {
  const raw = most / 5 || 1;
  if (binary) return Math.pow(2, Math.ceil(Math.log2(raw)));
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
}

function prepare(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  return { pen, width, height };
}

const LEFT = 66, RIGHT = 8, TOP = 8, BOTTOM = 20;

// layers: [{values, color}] put on each other; lines: [{values, color, dash, width}]; bars: layers as bars.
class Chart {
  constructor(canvas, onPick) {
    this.canvas = canvas;
    this.x = null;
    const frame = document.createElement("div");
    this.line = document.createElement("i");
    frame.className = "frame";
    this.line.className = "cursor";
    this.line.style.top = TOP + "px";
    canvas.replaceWith(frame);
    frame.append(canvas, this.line);
    const pick = (event) => {
      if (event.buttons !== 1 && event.type !== "pointerdown") return;
      const box = canvas.getBoundingClientRect();
      const part = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      onPick(Math.max(0, Math.min(1, part)));
    };
    canvas.addEventListener("pointerdown", pick);
    canvas.addEventListener("pointermove", pick);
  }

  draw(spec) {
    this.spec = spec;
    const { pen, width, height } = prepare(this.canvas);
    if (width === 0 || height === 0) return;
    const { layers = [], lines = [], bars = [], moments, show, axis } = spec;
    const stacked = new Float64Array(moments);
    for (const layer of [...layers, ...bars]) layer.values.forEach((v, i) => { stacked[i] += v; });
    let most = 1;
    for (const v of stacked) most = Math.max(most, v);
    for (const line of lines) for (const v of line.values) most = Math.max(most, v);
    const each = step(most, spec.binary);
    const top = Math.ceil(most / each) * each;
    const right = width - RIGHT, bottom = height - BOTTOM;
    const x = (i) => LEFT + (right - LEFT) * i / Math.max(1, moments - 1);
    const y = (v) => bottom - (bottom - TOP) * v / top;
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    pen.fillStyle = color("quiet");
    pen.strokeStyle = color("grid");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let v = 0; v <= top; v += each) {
      pen.beginPath();
      pen.moveTo(LEFT, Math.round(y(v)) + .5);
      pen.lineTo(right, Math.round(y(v)) + .5);
      pen.stroke();
      pen.fillText(show(v), LEFT - 6, y(v));
    }
    pen.textBaseline = "top";
    axis.forEach(({ at, text }, i) => {
      pen.textAlign = i === 0 ? "left" : at === 1 ? "right" : "center";
      pen.fillText(text, LEFT + (right - LEFT) * at, bottom + 5);
    });
    const base = new Float64Array(moments);
    for (const layer of layers) {
      pen.fillStyle = layer.color;
      pen.beginPath();
      for (let i = 0; i < moments; i += 1) pen.lineTo(x(i), y(base[i] + layer.values[i]));
      for (let i = moments - 1; i >= 0; i -= 1) pen.lineTo(x(i), y(base[i]));
      pen.fill();
      layer.values.forEach((v, i) => { base[i] += v; });
    }
    for (const bar of bars) {
      pen.fillStyle = bar.color;
      const wide = Math.max(1, (right - LEFT) / moments);
      bar.values.forEach((v, i) => {
        if (v > 0) pen.fillRect(x(i) - wide / 2, y(base[i] + v), wide, Math.max(1, y(base[i]) - y(base[i] + v)));
        base[i] += v;
      });
    }
    for (const line of lines) {
      pen.strokeStyle = line.color;
      pen.lineWidth = line.width || 1.5;
      pen.setLineDash(line.dash || []);
      pen.beginPath();
      line.values.forEach((v, i) => pen.lineTo(x(i), y(v)));
      pen.stroke();
    }
    pen.setLineDash([]);
    // Names at the right end, each in a line of its own.
    pen.textAlign = "right";
    pen.textBaseline = "alphabetic";
    let above = Infinity;
    for (const line of lines.filter((l) => l.label).sort((a, b) => a.values.at(-1) - b.values.at(-1))) {
      above = Math.max(TOP + 10, Math.min(y(line.values.at(-1)) - 5, above - 14));
      pen.fillStyle = line.color;
      pen.strokeStyle = color("card");
      pen.lineWidth = 4;
      pen.strokeText(line.label, right - 4, above);
      pen.fillText(line.label, right - 4, above);
    }
    this.x = x;
    this.bottom = bottom;
  }

  // The cursor is an element of its own above the canvas, so that moving it draws nothing anew.
  cursor(moment) {
    if (!this.x) return;
    this.line.style.transform = "translateX(" + (this.x(moment) - 1) + "px)";
    this.line.style.height = this.bottom - TOP + "px";
  }
}
