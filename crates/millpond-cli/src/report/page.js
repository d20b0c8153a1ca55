// The page: what is chosen, and everything that follows from it.

const byId = (id) => document.getElementById(id);
const state = { report: null, run: 0, layers: 0, moment: 0, pending: false };
let reports = [], bytes = null, queued = false;

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

async function read() {
  const packed = Uint8Array.from(atob(byId("data").textContent), (c) => c.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const all = new Uint8Array(await new Response(plain).arrayBuffer());
  const length = new DataView(all.buffer).getUint32(0, true);
  reports = JSON.parse(new TextDecoder().decode(all.subarray(4, 4 + length)));
  bytes = all.subarray(4 + length);
}

// Rows of cells; a cell is a text, a number with its text, or an element.
function table(heads, rows) {
  const box = element("div", undefined, "scroll"), made = element("table"), head = element("tr");
  for (const [text, kind] of heads) head.append(element("th", text, kind));
  made.append(head);
  for (const row of rows) {
    const line = element("tr");
    row.forEach((cell, i) => {
      const td = element("td", cell instanceof Node ? undefined : cell, heads[i][1]);
      if (cell instanceof Node) td.append(cell);
      line.append(td);
    });
    made.append(line);
  }
  box.append(made);
  return box;
}

function choices(box, names, chosen, pick) {
  box.replaceChildren(...(names.length < 2 ? [] : names.map((name, i) => {
    const button = element("button", name);
    button.type = "button";
    button.setAttribute("aria-pressed", String(i === chosen));
    button.addEventListener("click", () => pick(i));
    return button;
  })));
}

function legend(box, items) {
  box.replaceChildren(...items.map(({ color: shade, text, value }) => {
    const item = element("span"), key = element("i", undefined, "key");
    key.style.background = shade;
    item.append(key, text + " ");
    if (value !== undefined) item.append(element("b", value));
    return item;
  }));
}

function section(id, title, about, content) {
  const box = byId(id);
  box.replaceChildren(element("h2", title));
  if (about) box.append(element("p", about, "quiet"));
  box.append(content);
}

const pick = (part) => goTo(Math.round(part * (state.report.live.length - 1)));
const charts = { memory: new Chart(byId("memory"), pick), free: new Chart(byId("free"), pick), calls: new Chart(byId("calls"), pick) };
const map = new MemoryMap(byId("map"), (text) => { byId("map-hover").textContent = text || "\u00a0"; });

const run = () => state.report.runs[state.run];
const layerColors = () => Array.from({ length: 8 }, (_, i) => color("c" + i));

function axisMarks(report) {
  const { timed, end_ns } = report.axis;
  return [0, .25, .5, .75, 1].map((at) => ({
    at, text: timed ? duration(at * end_ns).replace(/^0\.0 µs$/, "0") : count(at * report.steps) + (at === 1 ? " steps" : ""),
  }));
}

function drawCharts() {
  const report = state.report, shades = layerColors(), moments = report.live.length, axis = axisMarks(report);
  const layers = report.layers[state.layers].values.map((values, i) => ({ values, color: shades[i] }));
  const lines = report.runs.map((other, i) => ({ values: other.reserved, color: i === state.run ? color("reserved") : color("recorded"), width: i === state.run ? 1.8 : 1.2, dash: i === state.run ? [] : [7, 3], label: report.runs.length > 1 || report.recorded ? other.policy : "" }));
  if (report.recorded) lines.push({ values: report.recorded.reserved, color: color("recorded"), dash: [2, 3], label: "as recorded" });
  if (state.pending) lines.push({ values: report.live.map((v, i) => v + report.pending[i]), color: color("pending"), dash: [2, 2], width: 1.2 });
  const common = { moments, axis };
  charts.memory.draw({ ...common, layers, lines, show: size, binary: true });
  charts.free.draw({ ...common, layers: [{ values: run().free, color: color("free") }], lines: [{ values: run().largest_free, color: color("piece"), width: 1.2 }], show: size, binary: true });
  charts.calls.draw({ ...common, bars: run().calls.map((values, i) => ({ values, color: shades[i] })), show: count });
}

function drawMoment() {
  queued = false;
  const at = state.moment, report = state.report, shades = layerColors();
  for (const chart of Object.values(charts)) chart.cursor(at);
  map.draw(at);
  const { at_ns, at_step, timed } = report.axis;
  byId("moment").textContent = (timed ? duration(at_ns[at]) + " after the start, " : "") + "step " + count(at_step[at]) +
    ": " + size(report.live[at]) + " live, " + size(run().reserved[at]) + " reserved";
  const layers = report.layers[state.layers];
  const items = layers.labels.map((text, i) => ({ color: shades[i], text, value: size(layers.values[i][at]) }));
  items.push({ color: color("reserved"), text: "reserved, " + run().policy, value: size(run().reserved[at]) });
  report.runs.forEach((other, i) => {
    if (i !== state.run) items.push({ color: color("recorded"), text: "reserved, " + other.policy, value: size(other.reserved[at]) });
  });
  if (report.recorded) items.push({ color: color("recorded"), text: "reserved, as recorded", value: size(report.recorded.reserved[at]) });
  if (state.pending) items.push({ color: color("pending"), text: "with what is freed and not complete (dotted)", value: size(report.live[at] + report.pending[at]) });
  legend(byId("memory-legend"), items);
  const free = run().free[at], piece = run().largest_free[at];
  legend(byId("free-legend"), [
    { color: color("free"), text: "free, in all", value: size(free) },
    { color: color("piece"), text: "largest piece at one address", value: size(piece) + (free > 0 ? " (" + Math.round(piece / free * 100) + " % of it)" : "") },
  ]);
  const kinds = ["create, allocate", "map, set access", "unmap", "release, free"];
  legend(byId("calls-legend"), kinds.map((text, i) => ({ color: shades[i], text, value: count(run().calls[i][at]) }))
    .concat([{ color: "transparent", text: "time", value: duration(run().call_us[at] * 1e3) }]));
  drawHere();
}

// Adds the column of call sites, where there are any.
function withSites(cells, site) {
  if (!state.report.layers.some((layers) => layers.by === "call site")) return cells;
  return [...cells, site === undefined ? ["call site", "wide"] : site || "not recorded"];
}

function drawHere() {
  const { at_ns, timed } = state.report.axis, found = map.blocks(state.moment).slice(0, 8);
  const when = (moment) => timed ? duration(at_ns[Math.min(moment, at_ns.length - 1)]) : "step " + count(state.report.axis.at_step[Math.min(moment, at_ns.length - 1)]);
  byId("here").replaceChildren(table(
    withSites([["size", "n"], ["address"], ["stream"], ["there from about", "n"], ["to about", "n"]]),
    found.map((b) => withSites([size(b.size), "0x" + b.address.toString(16), b.stream, when(b.from), b.to >= at_ns.length ? "the end" : when(b.to)], b.site))));
}

function goTo(moment) {
  state.moment = moment;
  byId("slider").value = moment;
  if (!queued) {
    queued = true;
    requestAnimationFrame(drawMoment);
  }
}

function showRun(number) {
  state.run = number;
  choices(byId("runs"), state.report.runs.map((r) => r.policy), number, showRun);
  map.show(run(), bytes, state.report.live.length);
  tiles();
  drawCharts();
  goTo(state.moment);
}

function showLayers(number) {
  state.layers = number;
  choices(byId("layers"), state.report.layers.map((l) => "by " + l.by), number, showLayers);
  drawCharts();
  goTo(state.moment);
}

// Whether the line of freed and not yet complete memory is drawn: it may be far above all else.
function showPending(on) {
  state.pending = on && state.report.peak_pending > 0;
  const box = byId("pending");
  choices(box, state.report.peak_pending > 0 ? ["live alone", "with pending"] : [], state.pending ? 1 : 0, (i) => {
    showPending(i === 1);
    drawCharts();
    goTo(state.moment);
  });
}

function showMapBy(number) {
  map.by = number === 1 ? "stream" : "use";
  const many = state.report.streams.length > 1;
  choices(byId("map-by"), many ? ["by use", "by stream"] : [], number, showMapBy);
  const items = [
    { color: color("c0"), text: "live" }, { color: color("mapped"), text: "mapped and free" },
    { color: color("elsewhere"), text: "mapped here too, live through another address" },
    { color: color("nothing"), text: "nothing mapped" },
  ];
  if (map.by === "stream") {
    const names = run().map.streams.slice(0, 8).map((name, i) => ({ color: color("c" + i), text: "stream " + name }));
    items.splice(0, 1, ...names);
  }
  legend(byId("map-legend"), items);
  goTo(state.moment);
}

function tiles() {
  const report = state.report, r = run();
  const ratio = report.peak_live > 0 ? (r.peak_reserved / report.peak_live).toFixed(3) : "–";
  const tile = (value, text) => {
    const box = element("div", undefined, "tile");
    box.append(element("b", value), element("span", text));
    return box;
  };
  byId("tiles").replaceChildren(
    tile(size(report.peak_live), "live at the peak"),
    tile(size(r.peak_reserved), "reserved at most, " + r.policy),
    tile(ratio, "reserved over live"),
    tile(count(r.driver_calls), "driver calls, " + duration(r.driver_ms * 1e6)),
    tile(size(report.peak_pending), "freed and not complete, at most"),
    tile(count(report.blocks), "blocks in " + count(report.steps) + " steps"));
}

function tables() {
  const report = state.report, peak = report.peak, streams = report.streams;
  if (report.runs.length > 1 || report.recorded) {
    const rows = report.runs.map((r) => [r.policy, size(r.peak_reserved), (r.peak_reserved / Math.max(1, report.peak_live)).toFixed(3), count(r.driver_calls), duration(r.driver_ms * 1e6), count(r.waits_inserted), count(r.failed_allocations)]);
    if (report.recorded) rows.push(["as recorded", size(report.recorded.peak_reserved), (report.recorded.peak_reserved / Math.max(1, report.peak_live)).toFixed(3), "–", "–", "–", count(report.failures.length)]);
    section("compare", "Allocators compared", "", table([["allocator"], ["reserved at most", "n"], ["over live", "n"], ["driver calls", "n"], ["time in them", "n"], ["waits inserted", "n"], ["failed", "n"]], rows));
  } else byId("compare").replaceChildren();
  const share = (part) => Math.round(part * 100 / Math.max(1, peak.live)) + " %";
  section("peak", "The peak explained",
    size(peak.live) + " in " + count(peak.blocks) + " blocks. " + size(peak.always) + " (" + share(peak.always) + ") are live for nearly all of the job; " +
    size(peak.new) + " (" + share(peak.new) + ") were allocated just before the peak. At " + Math.round(peak.below_nine_tenths * 100) + " of 100 moments less than nine tenths of it are live.",
    table([["what", "wide"], ["stream"], ["blocks", "n"], ["bytes", "n"], ["of the peak", "n"], [""], ["allocated from", "n"], ["to", "n"]],
      peak.rows.map((row) => {
        const bar = element("i", undefined, "share");
        bar.style.width = Math.round(row.bytes / Math.max(1, peak.live) * 120) + "px";
        return [row.what, row.stream, count(row.count), size(row.bytes), share(row.bytes), bar, duration(row.first_ns), duration(row.last_ns)];
      })));
  if (peak.others > 0) byId("peak").append(element("p", "and " + count(peak.others) + " smaller groups", "quiet"));
  section("growing", "Suspected leaks", "Groups of blocks whose lowest level rises from tenth to tenth of the job, and never falls; the first and the last tenth do not count.",
    report.growing.length === 0 ? element("p", "None.") :
      table([["what", "wide"], ["grew by", "n"], ["never freed", "n"], ["blocks", "n"], ["lowest level in each tenth", "wide"]],
        report.growing.map((g) => [g.what, size(g.bytes), size(g.kept_bytes), count(g.kept_blocks), g.floors.map(size).join(" → ")])));
  section("streams", "Streams", "Held: what other streams were done with, and this one was not.",
    table([["stream"], ["blocks", "n"], ["live at most", "n"], ["others' blocks used", "n"], ["held at most", "n"], ["longest hold", "n"], ["GiB · s held", "n"]],
      streams.map((s) => [s.name, count(s.blocks), size(s.peak_live), count(s.foreign_blocks), size(s.peak_held), duration(s.longest_hold_ns), (s.held_byte_seconds / 1073741824).toFixed(3)])));
  section("largest", "Largest blocks", "", table(withSites([["size", "n"], ["stream"], ["blocks", "n"], ["never freed", "n"], ["first allocated", "n"], ["longest life", "n"]]),
    report.largest.map((b) => withSites([size(b.size), b.stream, count(b.count), count(b.kept), duration(b.first_ns), duration(b.longest_ns)], b.what || ""))));
  const notes = element("ul");
  for (const f of report.failures) notes.append(element("li", "A request of " + size(f.size) + " failed when it was recorded: " + size(f.live) + " were live, " + size(f.reserved) + " reserved" + (f.device_free === null ? "" : ", " + size(f.device_free) + " free on the device")));
  for (const note of report.notes) notes.append(element("li", note));
  if (notes.children.length > 0) section("notes", "Notes on the recording", "", notes);
  else byId("notes").replaceChildren();
}

function showReport(number) {
  const report = reports[number];
  Object.assign(state, { report, run: 0, layers: 0, moment: report.peak.at });
  byId("title").textContent = report.name + ": where the memory is";
  document.title = byId("title").textContent;
  byId("about").textContent = report.format + ", " + count(report.steps) + " steps" +
    (report.axis.timed ? " in " + duration(report.axis.end_ns) : "") + ", replayed at full size on an emulated device";
  choices(byId("recordings"), reports.map((r) => r.name), number, showReport);
  byId("findings").replaceChildren(...report.findings.map((finding) => {
    const box = element("div", undefined, "finding");
    box.append(element("b", finding.what + "."), element("span", finding.advice));
    return box;
  }));
  byId("main").hidden = false;
  byId("slider").max = report.live.length - 1;
  showPending(report.peak_pending < 2 * report.peak_live);
  choices(byId("layers"), report.layers.map((l) => "by " + l.by), 0, showLayers);
  showRun(0);
  showMapBy(0);
  tables();
}

function redraw() {
  if (!state.report) return;
  map.colors();
  drawCharts();
  showMapBy(map.by === "stream" ? 1 : 0);
}

byId("slider").addEventListener("input", (event) => goTo(Number(event.target.value)));
byId("to-peak").addEventListener("click", () => goTo(state.report.peak.at));
window.addEventListener("resize", redraw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

read().then(() => {
  showReport(0);
  // Once it is on the screen.
  requestAnimationFrame(() => requestAnimationFrame(() => { document.documentElement.dataset.drawn = performance.now().toFixed(0); }));
}).catch((error) => {
  byId("about").textContent = "This page cannot be shown: " + error + ". It needs a browser of 2023 or later.";
  console.error(error);
});
