// The address space at one moment: cells from left to right, row by row, in the order of addresses.

const COLUMNS = 128;

// Undoes the differences from moment to moment.
function unpack(bytes, at, cells, moments) {
  const whole = bytes.slice(at, at + cells * moments);
  for (let i = cells; i < whole.length; i += 1) whole[i] ^= whole[i - cells];
  return whole;
}

function mix(from, to, part) {
  const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const a = parse(from), b = parse(to);
  return "rgb(" + a.map((v, i) => Math.round(v + (b[i] - v) * part)).join(",") + ")";
}

class MemoryMap {
  constructor(canvas, onHover) {
    this.canvas = canvas;
    this.by = "use";
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left) / box.width * COLUMNS);
      const row = Math.floor((event.clientY - box.top) / this.high);
      const cell = row * COLUMNS + column;
      onHover(this.data && cell >= 0 && cell < this.data.cells ? this.describe(cell) : "");
    });
    canvas.addEventListener("pointerleave", () => onHover(""));
  }

  show(run, bytes, moments) {
    const map = run.map;
    if (!map.fill) {
      map.fill = unpack(bytes, map.at, map.cells, moments);
      map.stream = unpack(bytes, map.at + map.cells * moments, map.cells, moments);
    }
    this.data = map;
    this.rows = Math.max(1, Math.ceil(map.cells / COLUMNS));
    this.high = 10;
    this.canvas.style.height = this.rows * this.high + "px";
    this.colors();
  }

  colors() {
    const free = color("mapped"), elsewhere = color("elsewhere"), nothing = color("nothing");
    this.size = prepare(this.canvas);
    const shades = (base) => Array.from({ length: 65 }, (_, code) => {
      if (code === 0) return nothing;
      const live = (code - 1) % 16, other = Math.floor((code - 1) / 16);
      if (live > 0) return mix(free, base, .25 + .75 * live / 15);
      return other > 0 ? elsewhere : free;
    });
    this.shades = Array.from({ length: 8 }, (_, i) => shades(color("c" + i)));
    this.shown = [];
  }

  draw(moment) {
    const { pen, width } = this.size;
    const { cells, fill, stream } = this.data;
    this.moment = moment;
    const wide = width / COLUMNS, from = moment * cells;
    for (let cell = 0; cell < cells; cell += 1) {
      const hue = this.by === "stream" && stream[from + cell] > 0 ? (stream[from + cell] - 1) % 8 : 0;
      const shade = this.shades[hue][fill[from + cell]];
      if (this.shown[cell] === shade) continue;
      this.shown[cell] = shade;
      // Whole pixels, so that what was there before is covered.
      const column = cell % COLUMNS, left = Math.round(column * wide);
      pen.fillStyle = shade;
      pen.fillRect(left, Math.floor(cell / COLUMNS) * this.high, Math.round((column + 1) * wide) - left - 1, this.high - 1);
    }
  }

  // The address of a byte, counted without the addresses that never had memory.
  address(place) {
    for (const [address, size] of this.data.ranges) {
      if (place < size) return address + place;
      place -= size;
    }
    return 0;
  }

  describe(cell) {
    const { cell_bytes, cells, fill, stream, streams } = this.data;
    const begin = this.address(cell * cell_bytes);
    const code = fill[this.moment * cells + cell];
    const where = "0x" + begin.toString(16) + ", " + size(cell_bytes) + ": ";
    if (code === 0) return where + "nothing is mapped here";
    const live = (code - 1) % 16, other = Math.floor((code - 1) / 16);
    const parts = [live > 0 ? Math.round(live / 15 * 100) + " % live" : "free"];
    if (other > 0) parts.push(Math.round(other / 3 * 100) + " % is live through another address");
    const on = stream[this.moment * cells + cell];
    if (on > 0 && streams.length > 1) parts.push("mostly stream " + streams[on - 1]);
    const inside = this.blocks(this.moment).filter((b) => b.address < begin + cell_bytes && b.address + b.size > begin);
    for (const b of inside.slice(0, 3)) parts.push("block of " + size(b.size) + (b.site ? " (" + b.site + ")" : ""));
    return where + parts.join("; ");
  }

  // The largest blocks that are there, the largest first.
  blocks(moment) {
    const { blocks, streams } = this.data;
    const found = [];
    for (let i = 0; i < blocks.size.length; i += 1) {
      if (blocks.from[i] <= moment && moment < blocks.to[i]) {
        found.push({ address: blocks.address[i], size: blocks.size[i], from: blocks.from[i], to: blocks.to[i],
          stream: streams[blocks.stream[i]], site: blocks.site[i] === null ? "" : blocks.sites[blocks.site[i]] });
      }
    }
    return found.sort((a, b) => b.size - a.size || a.address - b.address);
  }
}
