// ---- The data, and numbers as people read them ----

// Strings of the data come from a file that may be hostile. They become text nodes only, never markup.
const data = JSON.parse(document.getElementById("data").textContent);
const count = data.dtype.length;

// Every name is what it shares with the one before, and the rest.
const names = new Array(count);
for (let i = 0, before = ""; i < count; i++)
  before = names[i] = before.slice(0, data.names[2 * i]) + data.names[2 * i + 1];

const elements = data.shape.map((s) => data.shapes[s].reduce((a, b) => a * b, 1));

// The position of a tensor's histogram. Tensors without statistics have none.
const BINS = data.bins;
const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const HEIGHT = new Map([...DIGITS].map((c, i) => [c, i]));
const statsAt = new Int32Array(count).fill(-1);
for (let i = 0, at = 0; i < count; i++) if (data.state[i] === "e" || data.state[i] === "s") statsAt[i] = at++;

function heights(i) {
  const at = statsAt[i];
  return at < 0 ? null : [...data.histogram.substr(at * BINS, BINS)].map((c) => HEIGHT.get(c));
}

// min, max, mean or std of a tensor; null if it has none.
const stat = (key, i) => (statsAt[i] < 0 ? null : data[key][statsAt[i]]);

const notFinite = (i) => i in data.nan || i in data.infinite;

function scaled(number, units) {
  let unit = 0;
  while (unit < units.length - 1 && number >= (unit ? 999.95 : 1000)) { number /= 1000; unit++; }
  return (unit ? number.toFixed(1) : String(number)) + (units[unit] && "\u00a0" + units[unit]);
}
const bytesText = (n) => scaled(n, ["B", "kB", "MB", "GB", "TB", "PB", "EB"]);
const countText = (n) => scaled(n, ["", "k", "M", "G", "T", "P", "E"]);
const plural = (n, word) => n.toLocaleString("en") + "\u00a0" + word + (n === 1 ? "" : "s");
const percent = (part, whole) => (whole ? ((100 * part) / whole).toFixed(1) : "0.0") + "\u00a0%";
const shapeText = (i) => (data.shapes[data.shape[i]].length ? data.shapes[data.shape[i]].join("\u202f×\u202f") : "scalar");

function numberText(x, digits = 4) {
  if (x === null || x === undefined) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  return size >= 1e6 || size < 1e-3 ? x.toExponential(2).replace("e+", "e") : String(Number(x.toPrecision(digits)));
}

// An element with text and attributes.
function make(tag, attributes = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") element.className = value;
    else if (key === "hue") element.style.setProperty("--h", value);
    else element.setAttribute(key, value);
  }
  element.append(...inside);
  return element;
}

const byId = (id) => document.getElementById(id);

// A picture of a histogram. Bars have at least one pixel if there is a value in them.
function histogramPicture(heights, className, label) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const bars = heights.map((h, x) => (h ? `M${x * 4} 64h3.4v${-Math.max(h, 3)}h-3.4z` : ""));
  path.setAttribute("d", bars.join(""));
  svg.setAttribute("class", className);
  svg.setAttribute("viewBox", `0 0 ${BINS * 4} 64`);
  svg.setAttribute("preserveAspectRatio", "none");
  if (label) { svg.setAttribute("role", "img"); svg.setAttribute("aria-label", label); }
  else svg.setAttribute("aria-hidden", "true");
  svg.append(path);
  return svg;
}
