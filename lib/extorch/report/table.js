// ---- The table of tensors: only the rows that can be seen are elements ----

const COLUMNS = [
  { key: "name", title: "Name", class: "left", value: (i) => names[i], text: true },
  { key: "dtype", title: "Dtype", class: "left medium", value: (i) => dtypeName(i), text: true },
  { key: "shape", title: "Shape", class: "left", value: (i) => shapeText(i), order: (i) => elements[i] },
  { key: "elements", title: "Elements", class: "wide medium", value: (i) => countText(elements[i]), order: (i) => elements[i] },
  { key: "bytes", title: "Bytes", class: "", value: (i) => bytesText(data.bytes[i]), order: (i) => data.bytes[i] },
  { key: "min", title: "Min", class: "wide medium", value: (i) => numberText(stat("min", i), 3), order: (i) => stat("min", i) },
  { key: "max", title: "Max", class: "wide medium", value: (i) => numberText(stat("max", i), 3), order: (i) => stat("max", i) },
  { key: "mean", title: "Mean", class: "medium", value: (i) => numberText(stat("mean", i), 3), order: (i) => stat("mean", i) },
  { key: "std", title: "Std", class: "medium", value: (i) => numberText(stat("std", i), 3), order: (i) => stat("std", i) },
  { key: "histogram", title: "Values", class: "left medium", value: null, order: null },
];
const MARGIN = 8; // rows above and below those that can be seen

const scroll = byId("table"); // its head stays, and has the height of a row
const rows = byId("rows");
const search = byId("search");
const groupOf = new Map(); // tensor → its group of shared storages
data.shared.forEach((group) => group.forEach((i) => groupOf.set(i, group)));

let shown = Array.from({ length: count }, (_, i) => i); // the tensors that were found, in their order
let sorted = { key: null, down: false };
let open = new Set(); // tensors with details
let opened = []; // their positions in `shown`, ascending
let module = null; // only tensors below this module
let active = 0; // the position that Tab reaches
let drawn = [0, 0];
let rowHeight, detailHeight;

const collator = new Intl.Collator("en", { numeric: true });

function compare(column, down) {
  const sign = down ? -1 : 1;
  if (column.text) return (a, b) => sign * collator.compare(column.value(a), column.value(b)) || a - b;
  return (a, b) => {
    const x = column.order(a), y = column.order(b);
    if (x === null || y === null) return (x === null) - (y === null) || a - b; // those without are last
    return sign * (x - y) || a - b;
  };
}

// Words must all be in the name; /…/ is a regular expression.
function matcher(text) {
  const match = /^\/(.*)\/$/.exec(text);
  search.removeAttribute("aria-invalid");
  if (match) {
    try {
      const regex = new RegExp(match[1], "u");
      return (name) => regex.test(name);
    } catch {
      search.setAttribute("aria-invalid", "true");
      return () => true;
    }
  }
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (name) => words.every((word) => name.toLowerCase().includes(word));
}

function find() {
  const matches = matcher(search.value.trim());
  const dtype = byId("dtype").value, bad = byId("bad").checked, tied = byId("tied").checked;
  const below = module === null ? null : module + ".";
  shown = [];
  for (let i = 0; i < count; i++) {
    if (dtype !== "" && data.dtype[i] !== Number(dtype)) continue;
    if (bad && !notFinite(i)) continue;
    if (tied && !groupOf.has(i)) continue;
    if (below !== null && !names[i].startsWith(below)) continue;
    if (matches(names[i])) shown.push(i);
  }
  const column = COLUMNS.find((column) => column.key === sorted.key);
  if (column) shown.sort(compare(column, sorted.down));
  active = 0;
  scroll.scrollTop = 0;
  const bytes = shown.reduce((sum, i) => sum + data.bytes[i], 0);
  byId("found").textContent = shown.length === count
    ? plural(count, "tensor")
    : `${shown.length.toLocaleString("en")} of ${plural(count, "tensor")}, ${bytesText(bytes)}`;
  scroll.setAttribute("aria-rowcount", shown.length + 1);
  byId("module").hidden = module === null;
  if (module !== null) {
    byId("module").textContent = `in ${module} ✕`;
    byId("module").setAttribute("aria-label", `Only in ${module}: remove this filter`);
  }
  layOut();
}

// ---- Drawing ----

function layOut() {
  opened = [];
  if (open.size) shown.forEach((i, at) => { if (open.has(i)) opened.push(at); });
  const height = shown.length * rowHeight + opened.length * detailHeight;
  byId("space").style.height = height + "px";
  scroll.classList.toggle("few", height + rowHeight < innerHeight * 0.64);
  drawn = [0, 0];
  rows.replaceChildren();
  drawRows();
  if (!shown.length) {
    byId("space").style.height = "";
    rows.style.position = "static";
    rows.append(make("p", { class: "none" }, "No tensor has these properties."));
  } else rows.style.position = "";
}

// The distance of a position from the top, with the details above it.
function topOf(at) {
  let above = 0;
  while (above < opened.length && opened[above] < at) above++;
  return at * rowHeight + above * detailHeight;
}

// The position at a distance from the top.
function positionAt(y) {
  let low = 0, high = shown.length;
  while (low + 1 < high) {
    const middle = (low + high) >> 1;
    if (topOf(middle) <= y) low = middle; else high = middle;
  }
  return low;
}

const seen = () => scroll.clientHeight - rowHeight;

function drawRows() {
  const from = Math.max(positionAt(scroll.scrollTop) - MARGIN, 0);
  const to = Math.min(positionAt(scroll.scrollTop + seen()) + MARGIN + 1, shown.length);
  if (drawn[0] === from && drawn[1] === to) return;
  const focused = rows.contains(document.activeElement) ? active : -1;
  rows.style.top = topOf(from) + "px";
  const lines = [];
  for (let at = from; at < to; at++) {
    lines.push(row(at));
    if (open.has(shown[at])) lines.push(detail(at));
  }
  rows.replaceChildren(...lines);
  drawn = [from, to];
  if (focused >= 0) buttonAt(focused)?.focus({ preventScroll: true });
}

const buttonAt = (at) => rows.querySelector(`[data-at="${at}"]`);

function row(at) {
  const i = shown[at];
  const line = make("div", { role: "row", class: open.has(i) ? "line open" : "line", "aria-rowindex": at + 2 });
  for (const column of COLUMNS) {
    const cell = make("div", { role: "cell", class: column.key === "name" ? "left first" : column.class });
    if (column.key === "name") cell.append(nameButton(at, i));
    else if (column.value) cell.append(column.value(i));
    else if (statsAt[i] >= 0) cell.append(histogramPicture(heights(i), "spark"));
    if (column.key === "shape") cell.title = shapeText(i);
    line.append(cell);
  }
  return line;
}

function nameButton(at, i) {
  const button = make("button", { type: "button", class: "name", "aria-expanded": String(open.has(i)), "data-at": at,
    tabindex: at === active ? "0" : "-1", title: names[i] }, make("span", { class: "label" }, make("bdi", {}, names[i])));
  if (i in data.nan) button.append(make("em", {}, "NaN"));
  if (i in data.infinite) button.append(make("em", {}, "∞"));
  if (groupOf.has(i)) button.append(make("em", { class: "tie" }, "shared"));
  return button;
}

const STATES = {
  n: "The values were not read: the file is not on this machine, and the tensor is large. --stats all reads them.",
  o: "The values were not read (--stats none).",
  m: "A tensor on the device meta has no values.",
  u: "The linked LibTorch does not know this dtype.",
  z: "The tensor is sparse and would be too large if it were dense.",
  x: "The values could not be read: ",
};

function detail(at) {
  const i = shown[at];
  const cell = make("div", { role: "cell", class: "detail", "aria-colspan": COLUMNS.length });
  const list = make("dl");
  const add = (title, text, className) => list.append(make("div", { class: className }, make("dt", {}, title), make("dd", {}, text)));
  add("Name", names[i], "whole");
  add("Dtype", dtypeName(i));
  add("Shape", shapeText(i));
  add("Elements", elements[i].toLocaleString("en"));
  add("Bytes", `${bytesText(data.bytes[i])} (${percent(data.bytes[i], root.bytes)})`);
  if (data.kinds[data.kind[i]] !== "tensor") add("Kind", data.kinds[data.kind[i]]);
  if (data.devices[data.device[i]] !== "cpu") add("Saved on", data.devices[data.device[i]]);
  const figure = make("figure");
  if (statsAt[i] >= 0) {
    const number = (key) => numberText(stat(key, i));
    for (const [title, key] of [["Min", "min"], ["Max", "max"], ["Mean", "mean"], ["Standard deviation", "std"]]) add(title, number(key));
    for (const [title, key] of [["Zeros", "zeros"], ["NaN", "nan"], ["Infinite", "infinite"]]) if (i in data[key]) add(title, data[key][i].toLocaleString("en"));
    if (data.state[i] === "s") add("Sampled", `${data.sampled[i].toLocaleString("en")} of ${elements[i].toLocaleString("en")} values`, "whole");
    if (stat("min", i) !== null) figure.append(
      histogramPicture(heights(i), "hist", `Histogram of the values of ${names[i]} from ${number("min")} to ${number("max")}`),
      make("figcaption", {}, make("span", {}, number("min")), make("span", {}, data.state[i] === "s" ? "values (sample)" : "values"), make("span", {}, number("max"))));
  } else add("Values", STATES[data.state[i]] + (data.errors[i] ?? ""), "whole");
  const group = groupOf.get(i);
  if (group) {
    const others = group.filter((j) => j !== i);
    add("Shares its storage with", others.slice(0, 8).map((j) => names[j]).join(", ") + (others.length > 8 ? ` and ${others.length - 8} more` : ""), "whole");
  }
  cell.append(list, figure);
  return make("div", { role: "row", "aria-rowindex": at + 2 }, cell);
}

// ---- Moving ----

function scrollTo(at) {
  const top = topOf(at), bottom = top + rowHeight + (open.has(shown[at]) ? detailHeight : 0);
  if (top < scroll.scrollTop) scroll.scrollTop = top;
  else if (bottom > scroll.scrollTop + seen()) scroll.scrollTop = Math.min(bottom - seen(), top);
  drawRows();
}

function focusRow(at) {
  at = Math.max(0, Math.min(at, shown.length - 1));
  buttonAt(active)?.setAttribute("tabindex", "-1");
  active = at;
  scrollTo(at);
  const button = buttonAt(at);
  button?.setAttribute("tabindex", "0");
  button?.focus({ preventScroll: true });
}

function toggle(at) {
  const i = shown[at];
  if (!open.delete(i)) open.add(i);
  active = at;
  layOut();
  focusRow(at);
}

// Shows one tensor with its details.
function showTensor(i) {
  if (!shown.includes(i)) {
    search.value = ""; byId("dtype").value = ""; byId("bad").checked = byId("tied").checked = false; module = null;
    find();
  }
  open.add(i);
  layOut();
  focusRow(shown.indexOf(i));
  scroll.scrollIntoView({ block: "nearest" });
}

function listModule(name) {
  module = name;
  find();
  byId("tensors").scrollIntoView();
  search.focus({ preventScroll: true });
}

function sortBy(column) {
  const down = !column.text; // numbers: largest first
  if (sorted.key !== column.key) sorted = { key: column.key, down };
  else if (sorted.down === down) sorted = { key: column.key, down: !down };
  else sorted = { key: null, down: false };
  for (const header of byId("head").querySelectorAll("[role=columnheader]"))
    header.setAttribute("aria-sort", header.dataset.key === sorted.key ? (sorted.down ? "descending" : "ascending") : "none");
  find();
}

function measure() {
  const style = getComputedStyle(document.documentElement);
  rowHeight = parseFloat(style.getPropertyValue("--row"));
  detailHeight = parseFloat(style.getPropertyValue("--detail"));
}

function setUpTable() {
  const line = make("div", { role: "row", class: "line", "aria-rowindex": "1" });
  for (const column of COLUMNS) {
    const header = make("div", { role: "columnheader", class: column.class, "data-key": column.key });
    if (column.value) {
      header.setAttribute("aria-sort", "none");
      header.append(make("button", { type: "button" }, column.title));
      header.firstChild.addEventListener("click", () => sortBy(column));
    } else header.append(make("button", { type: "button", disabled: "" }, column.title));
    line.append(header);
  }
  byId("head").append(line);
  byId("dtype").append(make("option", { value: "" }, "all dtypes"), ...data.dtypes.map((name, i) => make("option", { value: i }, name)));
  measure();
  find();
  scroll.addEventListener("scroll", drawRows, { passive: true });
  rows.addEventListener("click", (event) => {
    const button = event.target.closest("[data-at]") ?? event.target.closest(".line")?.querySelector("[data-at]");
    if (button && !getSelection().toString()) toggle(Number(button.dataset.at));
  });
  rows.addEventListener("focusin", (event) => {
    if (event.target.dataset.at !== undefined) active = Number(event.target.dataset.at);
  });
  rows.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(seen() / rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    focusRow(active + steps[event.key]);
  });
  search.addEventListener("input", find);
  for (const id of ["dtype", "bad", "tied"]) byId(id).addEventListener("change", find);
  byId("module").addEventListener("click", () => { module = null; find(); search.focus(); });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName)) { event.preventDefault(); search.focus(); }
  });
  new ResizeObserver(() => {
    const before = detailHeight;
    measure();
    if (before !== detailHeight) layOut(); else drawRows();
  }).observe(scroll);
}
