// ---- Treemap of bytes by module ----

const DEEPEST = 24; // levels of the tree; the rest of a name stays together
const HUES = [246, 162, 28, 204, 336, 92, 276, 48, 186, 4, 122, 308];
const treemap = byId("treemap");
const tip = byId("tip");

const root = { name: "", label: "all", children: new Map(), bytes: 0, tensors: 0, parent: null, tensor: -1 };
let current = root;

// A node of the tree for every module and tensor. A tensor with several names is counted at the first.
function buildTree() {
  const again = new Set(data.again);
  for (let i = 0; i < count; i++) {
    const parts = names[i].split(".");
    if (parts.length > DEEPEST) parts.push(parts.splice(DEEPEST - 1).join("."));
    const size = again.has(i) ? 0 : data.bytes[i];
    let node = root;
    root.bytes += size;
    root.tensors++;
    for (const part of parts) {
      let child = node.children.get(part);
      if (!child) {
        const name = node.parent ? node.name + "." + part : part;
        child = { name, label: part, children: new Map(), bytes: 0, tensors: 0, parent: node, tensor: -1 };
        node.children.set(part, child);
      }
      child.bytes += size;
      child.tensors++;
      node = child;
    }
    node.tensor = i;
  }
}

// Modules with a single child are drawn as one: "model.layers".
function inner(node) {
  let label = node.label;
  while (node.children.size === 1 && node.tensor < 0) {
    node = node.children.values().next().value;
    label += "." + node.label;
  }
  return { node, label };
}

// Squarified layout (Bruls, Huizing and van Wijk): rows whose rectangles are as square as possible. The items are
// sorted, largest first. Calls place(item, x, y, width, height).
function squarify(items, x, y, width, height, place) {
  let left = items.reduce((sum, item) => sum + item.bytes, 0);
  let start = 0;
  while (start < items.length && left > 0 && width > 0 && height > 0) {
    const side = Math.min(width, height);
    const scale = (width * height) / left;
    let end = start, sum = 0, worst = Infinity;
    while (end < items.length) {
      const next = sum + items[end].bytes * scale;
      const ratio = Math.max((side * side * items[start].bytes * scale) / (next * next), (next * next) / (side * side * items[end].bytes * scale));
      if (ratio > worst) break;
      worst = ratio;
      sum = next;
      end++;
    }
    const thick = sum / side;
    let at = 0;
    for (let i = start; i < end; i++) {
      const long = (items[i].bytes * scale) / thick;
      if (width >= height) place(items[i], x, y + at, thick, long);
      else place(items[i], x + at, y, long, thick);
      at += long;
      left -= items[i].bytes;
    }
    if (width >= height) { x += thick; width -= thick; } else { y += thick; height -= thick; }
    start = end;
  }
}

// The children that are large enough to be seen, and the others as one.
function visible(node, area) {
  const children = [...node.children.values()];
  // A name can be a tensor and a module at the same time.
  const own = node.bytes - children.reduce((sum, child) => sum + child.bytes, 0);
  if (node.tensor >= 0 && own > 0) children.push({ ...node, children: new Map(), bytes: own, tensors: 1 });
  const items = children.filter((child) => child.bytes > 0).map(inner)
    .map(({ node, label }) => ({ node, label, bytes: node.bytes })).sort((a, b) => b.bytes - a.bytes);
  const least = (node.bytes * 90) / area; // 90 square pixels
  let shown = items.findIndex((item) => item.bytes < least);
  if (shown < 0) shown = items.length;
  shown = Math.min(shown, 400);
  if (items.length - shown < 2) return items.slice(0, Math.max(shown, items.length - 1) + 1);
  const rest = items.slice(shown);
  const bytes = rest.reduce((sum, item) => sum + item.bytes, 0);
  return [...items.slice(0, shown), { node: null, label: `${rest.length.toLocaleString("en")} more`, bytes }].sort((a, b) => b.bytes - a.bytes);
}

function put(element, x, y, width, height) {
  Object.assign(element.style, { left: x + "px", top: y + "px", width: width + "px", height: height + "px" });
  treemap.append(element);
}

function describe(item) {
  const share = `${bytesText(item.bytes)}, ${percent(item.bytes, root.bytes)} of all`;
  if (!item.node) return `${item.label}: ${share}`;
  if (!item.node.children.size) return `${dtypeName(item.node.tensor)} ${shapeText(item.node.tensor)}, ${share}`;
  return `${plural(item.node.tensors, "tensor")}, ${share}`;
}
const dtypeName = (i) => data.dtypes[data.dtype[i]];

function cellButton(item, hue, className) {
  const button = make("button", { type: "button", class: className, hue, tabindex: "-1" });
  const name = item.node ? item.node.name : item.label;
  button.setAttribute("aria-label", `${name}: ${describe(item)}`);
  button.item = item;
  return button;
}

// Draws the children of a node into a rectangle, and theirs into them while there is room.
function drawInside(node, x, y, width, height, level, hue) {
  const items = visible(node, width * height);
  items.forEach((item, i) => { item.hue = hue === null ? HUES[i % HUES.length] : hue + (((i * 3) % 5) - 2) * 7; });
  squarify(items, x, y, width, height, (item, x, y, w, h) => {
    const own = item.hue;
    const gap = level === 0 ? 1.5 : 0.75;
    [x, y, w, h] = [x + gap, y + gap, Math.max(w - 2 * gap, 1), Math.max(h - 2 * gap, 1)];
    if (item.node && item.node.children.size && w > 64 && h > 52 && level < 3) {
      put(make("div", { class: "group", hue: own, "aria-hidden": "true" }), x, y, w, h);
      const title = cellButton(item, own, "title");
      title.append(item.label);
      if (w > 100) title.append(make("small", {}, bytesText(item.bytes)));
      put(title, x, y, w, 20);
      // The parts of a module that is nearly all there is have colours of their own.
      drawInside(item.node, x + 2, y + 20, w - 4, h - 22, level + 1, hue === null && item.bytes > 0.7 * node.bytes ? null : own);
    } else {
      const cell = cellButton(item, own, item.node ? "cell" : "cell rest");
      if (w > 42 && h > 17) cell.append(make("span", {}, item.label));
      if (w > 52 && h > 34) cell.append(make("small", {}, bytesText(item.bytes)));
      if (w < 14 || h < 8) cell.style.padding = "0";
      put(cell, x, y, w, h);
    }
  });
}

function drawTreemap() {
  treemap.replaceChildren();
  if (current.bytes > 0) drawInside(current, 0, 0, treemap.clientWidth, treemap.clientHeight, 0, null);
  else treemap.append(make("p", { class: "none" }, "There are no bytes to show."));
  const first = treemap.querySelector("button");
  if (first) first.tabIndex = 0;
  drawCrumbs();
}

function drawCrumbs() {
  const path = [];
  for (let node = current; node; node = node.parent) path.unshift(node);
  byId("crumbs").replaceChildren(...path.map((node) => {
    const button = make("button", { type: "button", "aria-current": node === current ? "true" : null }, node.label);
    button.addEventListener("click", () => enter(node));
    return make("span", {}, button);
  }));
  byId("list").hidden = current === root || Boolean(data.view);
}

function enter(node) {
  current = node;
  tip.hidden = true;
  drawTreemap();
}

// A module is opened; a tensor is shown in the table.
function activate(item) {
  if (!item.node) return;
  if (item.node.children.size) {
    enter(item.node);
    treemap.querySelector("button")?.focus();
  } else if (!data.view) showTensor(item.node.tensor);
}

// The next button in a direction, by the distance of centres.
function neighbour(from, dx, dy) {
  const a = from.getBoundingClientRect();
  let best = null, least = Infinity;
  for (const button of treemap.querySelectorAll("button")) {
    const b = button.getBoundingClientRect();
    const x = b.left + b.width / 2 - a.left - a.width / 2, y = b.top + b.height / 2 - a.top - a.height / 2;
    const along = x * dx + y * dy, across = Math.abs(x * dy) + Math.abs(y * dx);
    if (button !== from && along > 1 && along + 2 * across < least) { best = button; least = along + 2 * across; }
  }
  return best;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function setUpTreemap() {
  buildTree();
  drawTreemap();
  const itemOf = (event) => event.target.closest("button")?.item;
  treemap.addEventListener("click", (event) => { const item = itemOf(event); if (item) activate(item); });
  treemap.addEventListener("keydown", (event) => {
    if (event.key in ARROWS) {
      const next = neighbour(event.target, ...ARROWS[event.key]);
      if (next) {
        event.target.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
    } else if (event.key === "Escape" && current.parent) {
      enter(current.parent);
      treemap.querySelector("button")?.focus();
    } else return;
    event.preventDefault();
  });
  const showTip = (item, x, y) => {
    tip.replaceChildren(make("b", {}, item.node ? item.node.name : item.label), describe(item));
    tip.hidden = false;
    tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 18) + "px";
  };
  treemap.addEventListener("pointermove", (event) => {
    const item = itemOf(event);
    if (item) showTip(item, event.clientX, event.clientY); else tip.hidden = true;
  });
  treemap.addEventListener("pointerleave", () => { tip.hidden = true; });
  treemap.addEventListener("focusin", (event) => {
    const item = itemOf(event), box = event.target.getBoundingClientRect();
    if (item && event.target.matches(":focus-visible")) showTip(item, box.left, box.bottom - 12);
  });
  treemap.addEventListener("focusout", () => { tip.hidden = true; });
  byId("list").addEventListener("click", () => listModule(current.name));
  let width = treemap.clientWidth;
  new ResizeObserver(() => {
    if (treemap.clientWidth !== width) { width = treemap.clientWidth; drawTreemap(); }
  }).observe(treemap);
}
