// ---- The rest of the page ----

const dark = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : dark.matches;
}

function setUpTheme() {
  const button = byId("theme");
  const draw = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    draw();
  });
  dark.addEventListener("change", draw);
  draw();
}

function drawFigures() {
  const parameters = elements.reduce((sum, n, i) => sum + n, 0) - data.again.reduce((sum, i) => sum + elements[i], 0);
  const bad = names.filter((_, i) => i in data.nan || i in data.infinite).length;
  const figures = [["tensors", count.toLocaleString("en")], ["parameters", countText(parameters)], ["in size", bytesText(root.bytes)],
    ["format", data.format]];
  if (data.shards > 1) figures.push(["shards", data.shards.toLocaleString("en")]);
  if (data.shared.length) figures.push([data.shared.length === 1 ? "shared storage" : "shared storages", data.shared.length.toLocaleString("en")]);
  if (data.values.length + data.more_values) figures.push(["other values", (data.values.length + data.more_values).toLocaleString("en")]);
  if (data.histogram.length) figures.push(["with NaN or infinite", bad.toLocaleString("en")]);
  byId("figures").append(...figures.map(([title, text]) => make("div", {}, make("dt", {}, title), make("dd", {}, text))));
  byId("subtitle").textContent = data.about.join(" · ");
}

const VERDICTS = {
  safe: ["✓", "Accepted by weights_only", "torch.load with weights_only=True loads it: it names nothing but what torch allows."],
  data: ["✓", "Contains no code", "Files of this format are data only."],
  refused: ["!", "Refused by weights_only", ""],
  unknown: ["?", "Safety unknown", ""],
};

function drawSafety() {
  const { verdict, message, names, more } = data.safety;
  const [mark, title, why] = VERDICTS[verdict];
  const style = verdict === "data" ? "safe" : verdict;
  const panel = byId("safety");
  panel.append(make("div", { class: "mark " + style, "aria-hidden": "true" }, mark), make("strong", { role: "heading", "aria-level": 3 }, title),
    make("p", { class: "why" }, message || why));
  if (verdict === "refused") panel.append(make("p", { class: "why" },
    "Loading it in Python without weights_only imports and calls what it names. ExTorch never does; unknown classes are inert data."));
  if (names.length) panel.append(make("ul", { "aria-label": "Names that make it unsafe" }, ...names.map((name) => make("li", { class: "code" }, name)),
    ...(more ? [make("li", { class: "code" }, `and ${more} more`)] : [])));
}

function drawShares() {
  const again = new Set(data.again);
  const bytes = data.dtypes.map(() => 0), tensors = data.dtypes.map(() => 0);
  for (let i = 0; i < count; i++) { tensors[data.dtype[i]]++; if (!again.has(i)) bytes[data.dtype[i]] += data.bytes[i]; }
  const order = data.dtypes.map((_, d) => d).sort((a, b) => bytes[b] - bytes[a]);
  const text = (d) => `${percent(bytes[d], root.bytes)} of bytes, ${plural(tensors[d], "tensor")}`;
  byId("shares").setAttribute("aria-label", order.map((d) => `${data.dtypes[d]}: ${text(d)}`).join("; "));
  order.forEach((d, n) => {
    const hue = HUES[n % HUES.length];
    if (bytes[d]) {
      const part = make("i", { hue });
      part.style.flexGrow = bytes[d] / root.bytes;
      byId("shares").append(part);
    }
    byId("dtypes").append(make("li", { hue }, data.dtypes[d] + " ", make("span", {}, text(d))));
  });
}

function drawPairs(id, pairs, more) {
  if (!pairs.length) return;
  const list = byId(id).querySelector("dl");
  for (const [key, value] of pairs) list.append(make("dt", {}, key), make("dd", {}, value));
  if (more) list.append(make("dt", {}, "…"), make("dd", {}, plural(more, "more value")));
  byId(id).hidden = false;
}

function drawShared() {
  if (!data.shared.length) return;
  const list = byId("shared").querySelector("ul");
  for (const group of data.shared.slice(0, 500)) {
    const text = group.slice(0, 12).map((i) => names[i]).join(", ") + (group.length > 12 ? ` and ${group.length - 12} more` : "");
    list.append(make("li", {}, make("span", {}, plural(group.length, "tensor")), text));
  }
  if (data.shared.length > 500) list.append(make("li", {}, plural(data.shared.length - 500, "more group")));
  byId("shared").hidden = false;
}

function describeSampling() {
  const sampled = [...data.state].filter((s) => s === "s").length, left = [...data.state].filter((s) => s === "n").length;
  const text = ["Statistics are of the finite values; complex numbers are taken by their absolute value."];
  if (sampled) text.push(`Tensors with more than ${data.limit.toLocaleString("en")} elements are sampled evenly (${plural(sampled, "tensor")}): their figures are estimates, and rare values can be missing.`);
  if (left) text.push(`The values of ${plural(left, "tensor")} were not read, because the file is not on this machine.`);
  if (data.state.startsWith("o")) text.splice(0, 1, "Statistics were switched off.");
  byId("sampling").textContent = text.join(" ");
}

// In a notebook, the page is only the treemap.
if (data.view) Object.assign(document.documentElement.dataset, { view: data.view, theme: "light" });
document.querySelector("main").hidden = false;
setUpTheme();
setUpTreemap();
drawFigures();
drawSafety();
drawShares();
setUpTable();
drawShared();
drawPairs("values", data.values, data.more_values);
drawPairs("metadata", data.metadata, data.more_metadata);
describeSampling();
document.documentElement.dataset.ready = Math.round(performance.now());
