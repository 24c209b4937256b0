"use strict";
// The map, the flow, the details and the table of a ddplint page. All text goes in as text, never as HTML.
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  // The columns of a parameter's row, of a place, of a rule entry and of a finding (ddplint/report/html.py).
  const [NAME, ALIASES, MODULE, TYPE, SHAPE, DTYPE, NUMEL, BYTES, STATUS, CAUSE, PLACE, WHY, ENTRY, DOCUMENTED, EVIDENCE] = Array(15).keys();
  const [FILE, LINE, FUNCTION, SOURCE] = Array(4).keys();
  const [PARAMS, REASON, ACTION, WHEN, AT] = Array(5).keys();
  const [CODE, TITLE, SEVERITY, MESSAGE, FIX, ABOUT] = Array(6).keys();
  const FLOWS = ["gradient", "cut", "dropped"];
  const LOSS = "\u0000loss";
  const PATTERNS = { dead: "x", documented: "/", sometimes: ".", used: "", frozen: "-", mixed: "" };
  const STATUSES = Object.keys(DATA.statuses);
  const UNUSED = ["dead", "documented", "sometimes"];
  const ROW = 26, LANE = 9, LANES = 14, PAGE = 100, LISTED = 60, AT_FIRST = 34, MAPPED = 300;
  const $ = (id) => document.getElementById(id);
  if (!DATA.results.length) return;

  // ------------------------------------------------------------------ small helpers

  function make(tag, options = {}, ...children) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(options)) {
      if (key === "class") element.className = value;
      else if (key === "click") element.addEventListener("click", value);
      else if (value !== null && value !== undefined) element.setAttribute(key, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }
  function shape(tag, options) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(options)) element.setAttribute(key, value);
    return element;
  }
  const grouped = (number) => number.toLocaleString("en-US");
  const count = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
  function size(bytes) {
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (bytes < 1024) return unit === "B" ? `${bytes} B` : `${bytes.toFixed(1)} ${unit}`;
      bytes /= 1024;
    }
    return `${bytes.toFixed(1)} TiB`;
  }
  function percent(part, whole) {
    const share = whole ? (100 * part) / whole : 0;
    if (share > 0 && share < 0.1) return "under 0.1 %";
    return `${share >= 9.95 || share === 0 ? share.toFixed(0) : share.toFixed(1)} %`;
  }
  function prose(text) { // what stands between backticks is code
    const parts = text.split("`");
    if (parts.length % 2 === 0) return [text];
    return parts.map((part, at) => (at % 2 ? make("code", {}, part) : part));
  }
  const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;
  const swatch = (status) => make("span", { class: `swatch ${status}`, "aria-hidden": "true" });
  const statusLabel = (status) => make("span", { class: "status" }, swatch(status), DATA.statuses[status] ?? "mixed");
  const naming = (path) => (path === LOSS ? "loss" : path || "model");
  const owner = (path) => (path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "");
  const shortly = (path) => (path === LOSS || path === "" ? naming(path) : path.slice(owner(path).length).replace(/^\./, ""));
  const around = (path) => (path === "" ? [] : [...around(owner(path)), owner(path)]);

  // A module after those around it, each of which is a button.
  function trail(path, go) {
    const items = path === LOSS ? [LOSS] : [...around(path), path];
    return items.flatMap((each, at) => [
      ...(at ? [make("span", { "aria-hidden": "true" }, ".")] : []),
      at === items.length - 1 ? make("span", { "aria-current": "true" }, shortly(each)) : make("button", { type: "button", click: () => go(each) }, shortly(each)),
    ]);
  }

  // ------------------------------------------------------------------ the modules of each result

  function modulesOf(result) {
    const modules = new Map();
    const add = (path) => {
      let module = modules.get(path);
      if (!module) {
        module = { path, children: [], own: [], count: 0, bytes: 0, numel: 0, held: {}, type: "", order: Infinity };
        modules.set(path, module);
        if (path !== "") add(owner(path)).children.push(module);
      }
      return module;
    };
    add("");
    result.parameters.forEach((row, number) => {
      const module = add(row[MODULE]);
      module.own.push(number);
      module.type = result.texts[row[TYPE]];
      for (const path of [...around(row[MODULE]), row[MODULE]]) {
        const each = modules.get(path);
        each.count += 1;
        each.bytes += row[BYTES];
        each.numel += row[NUMEL];
        const held = (each.held[row[STATUS]] ??= { count: 0, bytes: 0 });
        held.count += 1;
        held.bytes += row[BYTES];
      }
    });
    let order = 0; // edges come in the order in which the gradient does
    for (const [consumer, producer] of result.edges) {
      for (const end of [consumer, producer]) {
        if (end === null) continue;
        add(end); // one that holds parameters by another name only, as a tied head does
        for (const path of [...around(end), end]) {
          const module = modules.get(path);
          if (module.order === Infinity) module.order = order++;
        }
      }
    }
    for (const module of modules.values()) {
      const found = STATUSES.filter((status) => module.held[status]);
      module.status = found.length === 1 ? found[0] : "mixed";
      if (!found.length) module.status = "used";
      module.flowing = [...module.children].sort((a, b) => a.order - b.order || 0);
    }
    return modules;
  }
  const results = DATA.results.map((result) => ({ ...result, modules: modulesOf(result) }));
  const unusedBytes = (module) => UNUSED.reduce((sum, status) => sum + (module.held[status]?.bytes ?? 0), 0);
  const unusedCount = (module) => UNUSED.reduce((sum, status) => sum + (module.held[status]?.count ?? 0), 0);
  let chosen = 0;
  const state = results.map((result) => ({ unfolded: firstUnfolded(result), selected: null, focused: LOSS }));

  // Where a reader starts: the model, and inside it what is partly unused, as far as that fits on a screen.
  function firstUnfolded(result) {
    const unfolded = new Set([""]);
    let rows = 2 + result.modules.get("").children.length;
    const queue = [...result.modules.get("").flowing];
    while (queue.length) {
      const module = queue.shift();
      const wanted = module.status === "mixed" || result.modules.get("").children.length < 3;
      if (!module.children.length || !wanted || rows + module.children.length > AT_FIRST) continue;
      unfolded.add(module.path);
      rows += module.children.length;
      queue.push(...module.flowing);
    }
    return unfolded;
  }

  // ------------------------------------------------------------------ theme

  const theme = $("theme");
  function showTheme() {
    const dark = document.documentElement.dataset.theme === "dark";
    theme.textContent = dark ? "Light theme" : "Dark theme";
  }
  theme.addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("ddplint-theme", next); } catch { /* storage can be forbidden for files */ }
    showTheme();
    if (window.Plotly) drawMaps();
  });
  showTheme();
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  // ------------------------------------------------------------------ the map

  const present = (status) => results.some((result) => result.modules.get("").held[status]);
  $("legend").append(
    ...STATUSES.filter(present).map((status) => make("li", {}, statusLabel(status))),
    make("li", {}, statusLabel("mixed")),
  );
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // Plotly reads tags
  const plots = results.map((result, number) => {
    const whole = result.modules.get("");
    const label = `Tree map of ${result.title}: ${size(whole.bytes)} in ${count(whole.count, "parameter")}, of which ` +
      `${percent(unusedBytes(whole), whole.bytes)} not used on every path. The table of parameters has the same numbers.`;
    const plot = make("div", { class: "plot", role: "img", "aria-label": label });
    const caption = make("figcaption", {}, result.title, make("span", {}, ` · ${size(whole.bytes)}`));
    const bar = make("nav", { class: "crumbs", "aria-label": `Where the map of ${result.title} is` });
    $("maps").append(make("figure", {}, caption, bar, plot));
    return { plot, bar, root: "" };
  });

  // The module that a map is in, and those inside it: whole levels, as many as can be told apart.
  function mapped(result, root) {
    const found = [];
    for (let level = [result.modules.get(root)]; level.length && (found.length < 2 || found.length + level.length <= MAPPED);) {
      found.push(...level);
      level = level.flatMap((module) => module.children).filter((module) => module.count);
    }
    return found;
  }
  function mapOf(result, root) {
    const modules = mapped(result, root), whole = result.modules.get("");
    const share = (module) => {
      const part = unusedBytes(module);
      return part && module.status === "mixed" ? `, ${percent(part, module.bytes)} unused` : "";
    };
    return {
      type: "treemap",
      ids: modules.map((module) => `m${module.path}`),
      labels: modules.map((module) => plain(shortly(module.path))),
      parents: modules.map((module) => (module.path === root ? "" : `m${owner(module.path)}`)),
      values: modules.map((module) => module.bytes),
      text: modules.map((module) => `${size(module.bytes)}${share(module)}`),
      customdata: modules.map((module) => [
        module.path, plain(naming(module.path)), plain(module.type), count(module.count, "parameter"),
        DATA.statuses[module.status] ?? `${grouped(unusedCount(module))} not used on every path`, percent(module.bytes, whole.bytes),
      ]),
      hovertemplate: "<b>%{customdata[1]}</b> %{customdata[2]}<br>%{text} (%{customdata[5]} of the model)<br>%{customdata[3]}: %{customdata[4]}<extra></extra>",
      textinfo: "label+text",
      textposition: "middle center",
      branchvalues: "total",
      sort: true,
      tiling: { pad: 2 },
      pathbar: { visible: false },
      marker: {
        colors: modules.map((module) => color(module.status)),
        line: { width: 1, color: color("surface") },
        pad: { t: 20, l: 3, r: 3, b: 3 },
        pattern: {
          shape: modules.map((module) => PATTERNS[module.status]),
          fillmode: "replace", bgcolor: modules.map((module) => color(module.status)), // Plotly warns of a list with "overlay"
          fgcolor: modules.map((module) => color(`${module.status}-text`)), fgopacity: 0.28, size: 9, solidity: modules.map((module) => (module.status === "sometimes" ? 0.06 : 0.2)),
        },
      },
      insidetextfont: { color: modules.map((module) => color(`${module.status}-text`)), size: 12 },
      outsidetextfont: { color: color("mixed-text"), size: 12 },
    };
  }
  function drawMaps() {
    plots.forEach((_, number) => drawMap(number));
  }
  function drawMap(number) {
    const { plot, bar, root } = plots[number];
    bar.replaceChildren(...trail(root, (path) => enter(number, path)));
    const layout = {
      margin: { l: 0, r: 0, t: 0, b: 0 },
      paper_bgcolor: color("surface"),
      font: { family: 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif', color: color("text") },
      hoverlabel: { bgcolor: color("surface"), bordercolor: color("strong"), font: { color: color("text") }, align: "left" },
    };
    const first = !plot.data;
    Plotly.react(plot, [mapOf(results[number], root)], layout, { displayModeBar: false, responsive: true });
    if (first) plot.on("plotly_treemapclick", (event) => {
      const path = event.points[0].customdata?.[0];
      if (path !== undefined) setTimeout(() => enter(number, path)); // not while Plotly is in its own handler
      return false; // the map goes deeper by being drawn anew, so that a large model is never drawn whole
    });
  }
  // Shows a module, and goes into it if it has parts.
  function enter(number, path) {
    if (results[number].modules.get(path).children.length && plots[number].root !== path) {
      plots[number].root = path;
      drawMap(number);
    }
    select(number, path, { reveal: true });
  }

  // ------------------------------------------------------------------ the flow

  const tree = $("tree"), lanes = $("lanes"), scroller = $("scroller");
  let rows = [], drawn = null; // what the tree shows now, and the lines beside it
  function visibleRows(result, unfolded) {
    const found = [{ path: LOSS, level: 1, position: 1, of: 2 }];
    const visit = (module, level, position, of) => {
      found.push({ path: module.path, module, level, position, of });
      if (unfolded.has(module.path)) {
        module.flowing.forEach((child, number) => visit(child, level + 1, number + 1, module.flowing.length));
      }
    };
    visit(result.modules.get(""), 1, 2, 2);
    return found;
  }
  function visible(path, shown) {
    if (path === null) return LOSS;
    while (!shown.has(path)) path = owner(path);
    return path;
  }
  function miniBar(module) {
    const parts = STATUSES.filter((status) => module.held[status]?.bytes);
    return make("span", { class: "mini", "aria-hidden": "true" }, ...parts.map((status) =>
      make("span", { class: `fill ${status}`, style: null, "data-grow": module.held[status].bytes })));
  }
  function said(module) {
    if (!module.count) return "holds no parameters of its own";
    const parts = STATUSES.filter((status) => module.held[status]).map((status) => `${grouped(module.held[status].count)} ${DATA.statuses[status]}`);
    return `${size(module.bytes)}, ${parts.join(", ")}`;
  }
  function drawTree({ focus = false } = {}) {
    const result = results[chosen], own = state[chosen];
    rows = visibleRows(result, own.unfolded);
    const shown = new Map(rows.map((row, number) => [row.path, number]));
    if (!shown.has(own.focused)) own.focused = visible(own.focused, shown);
    drawn = lanesOf(result, shown);
    tree.replaceChildren(...rows.map((row) => {
      const { path, module, level } = row;
      const folds = module?.children.length > 0;
      const open = folds && own.unfolded.has(path);
      const label = shortly(path);
      const item = make("div", {
        role: "treeitem", "aria-level": level, "aria-posinset": row.position, "aria-setsize": row.of,
        "aria-expanded": folds ? String(open) : null, "aria-selected": String(own.selected === path),
        "aria-label": module ? `${label}${module.type ? `, ${module.type}` : ""}, ${said(module)}` : "loss",
        tabindex: path === own.focused ? "0" : "-1",
      },
        make("span", { class: "twist" }, folds ? (open ? "▾" : "▸") : path === LOSS ? "∇" : ""),
        module && module.count ? swatch(module.status) : null,
        make("span", { class: "label" }, label),
        make("span", { class: "kind" }, module?.type || (folds && !open ? `${count(module.count, "parameter")}` : "")),
        module && module.count ? make("span", { class: "amount" }, size(module.bytes)) : null,
        module && module.count ? miniBar(module) : null,
      );
      item.style.paddingLeft = `${drawn.left + 16 * (level - 1)}px`;
      item.querySelectorAll("[data-grow]").forEach((part) => { part.style.flexGrow = part.dataset.grow; });
      item.dataset.path = path;
      return item;
    }));
    drawLanes();
    if (focus) focusRow(own.focused);
  }
  function lanesOf(result, shown) {
    const best = new Map();
    for (const [consumer, producer, flow, place] of result.edges) {
      const from = shown.get(visible(consumer, shown)), to = shown.get(visible(producer, shown));
      if (from === to) continue;
      const key = `${from}-${to}`, known = best.get(key);
      if (!known || FLOWS.indexOf(flow) < FLOWS.indexOf(known.flow)) best.set(key, { from, to, flow, place });
    }
    const edges = [...best.values()].sort((a, b) => Math.abs(a.from - a.to) - Math.abs(b.from - b.to) || a.from - b.from || a.to - b.to);
    const taken = Array.from({ length: LANES }, () => []);
    let width = 0;
    for (const edge of edges) {
      const [top, end] = [Math.min(edge.from, edge.to), Math.max(edge.from, edge.to)];
      let lane = taken.findIndex((spans) => spans.every(([a, b]) => b <= top || a >= end));
      if (lane < 0) lane = LANES - 1; // more than fit share the last one
      taken[lane].push([top, end]);
      edge.lane = lane;
      width = Math.max(width, lane + 1);
    }
    return { edges, left: 16 + LANE * (width + 1) };
  }
  function drawLanes() {
    const { edges, left } = drawn, selected = state[chosen].selected;
    const near = rows.findIndex((row) => row.path === selected);
    lanes.setAttribute("width", left + 16 * Math.max(...rows.map((row) => row.level)));
    lanes.setAttribute("height", rows.length * ROW);
    lanes.classList.toggle("dim", near >= 0 && edges.some((edge) => edge.from === near || edge.to === near));
    const start = left - 6;
    lanes.replaceChildren(...edges.flatMap((edge) => {
      // A row's outgoing lines leave below its middle, and incoming ones arrive above it.
      const down = edge.to > edge.from;
      const [a, b] = [edge.from * ROW + ROW / 2 + (down ? 4 : -4), edge.to * ROW + ROW / 2 + (down ? -4 : 4)];
      const x = start - 8 - LANE * (edge.lane + 0.6), r = down ? 5 : -5;
      const [first, last] = [edge.from, edge.to].map((at) => start + 16 * (rows[at].level - 1)); // up to the row's own indent
      const kind = `${edge.flow}${edge.from === near || edge.to === near ? " near" : ""}`;
      return [
        shape("path", { class: `edge ${kind}`, d: `M${first} ${a}H${x + 5}Q${x} ${a} ${x} ${a + r}V${b - r}Q${x} ${b} ${x + 5} ${b}H${last - 4}` }),
        shape("path", { class: `tip ${kind}`, d: `M${last - 6} ${b - 3.5}L${last + 1} ${b}L${last - 6} ${b + 3.5}Z` }),
      ];
    }));
  }
  function markSelected() {
    for (const item of tree.children) item.setAttribute("aria-selected", String(item.dataset.path === state[chosen].selected));
    drawLanes();
  }
  const rowOf = (path) => tree.children[rows.findIndex((row) => row.path === path)];
  function focusRow(path) {
    const before = tree.querySelector('[tabindex="0"]');
    if (before) before.tabIndex = -1;
    state[chosen].focused = path;
    const item = rowOf(path);
    item.tabIndex = 0;
    item.focus({ preventScroll: true });
    item.scrollIntoView({ block: "nearest", behavior: "instant" });
  }
  function unfold(path, open) {
    const module = results[chosen].modules.get(path);
    if (!module?.children.length) return;
    if (open) state[chosen].unfolded.add(path);
    else state[chosen].unfolded.delete(path);
    state[chosen].focused = path;
    drawTree({ focus: true });
  }
  tree.addEventListener("click", (event) => {
    const item = event.target.closest('[role="treeitem"]');
    if (!item) return;
    const path = item.dataset.path;
    state[chosen].focused = path;
    if (event.target.closest(".twist") && item.hasAttribute("aria-expanded")) unfold(path, item.getAttribute("aria-expanded") !== "true");
    else select(chosen, path, { focus: true });
  });
  tree.addEventListener("dblclick", (event) => {
    const item = event.target.closest("[aria-expanded]");
    if (item && !event.target.closest(".twist")) unfold(item.dataset.path, item.getAttribute("aria-expanded") !== "true");
  });
  tree.addEventListener("keydown", (event) => {
    const own = state[chosen], at = rows.findIndex((row) => row.path === own.focused), { path, module } = rows[at];
    const open = own.unfolded.has(path), folds = module?.children.length > 0;
    const go = (number) => focusRow(rows[Math.max(0, Math.min(rows.length - 1, number))].path);
    const keys = {
      ArrowDown: () => go(at + 1),
      ArrowUp: () => go(at - 1),
      Home: () => go(0),
      End: () => go(rows.length - 1),
      ArrowRight: () => (folds && !open ? unfold(path, true) : folds && go(at + 1)),
      ArrowLeft: () => (folds && open ? unfold(path, false) : path !== LOSS && path !== "" && focusRow(owner(path))),
      Enter: () => { select(chosen, path); $("details").focus(); },
      " ": () => select(chosen, path, { focus: true }),
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    } else if (event.key.length === 1) { // a letter goes to the next row that starts with it
      const letter = event.key.toLowerCase();
      const next = [...rows.slice(at + 1), ...rows.slice(0, at)].find((row) => naming(row.path).split(".").pop().toLowerCase().startsWith(letter));
      if (next) focusRow(next.path);
    }
  });
  $("unfold").addEventListener("click", () => {
    for (const module of results[chosen].modules.values()) if (module.children.length) state[chosen].unfolded.add(module.path);
    drawTree();
  });
  $("fold").addEventListener("click", () => {
    state[chosen].unfolded = new Set([""]);
    drawTree();
  });

  // ------------------------------------------------------------------ which checkpoint type

  const tabs = results.map((result, number) => make("button", { type: "button", role: "radio", click: () => choose(number) }, result.title));
  if (results.length > 1) $("types").append(...tabs);
  else $("types").remove();
  function choose(number) {
    chosen = number;
    tabs.forEach((tab, at) => {
      tab.setAttribute("aria-checked", String(at === number));
      tab.tabIndex = at === number ? 0 : -1;
    });
    drawTree();
    drawDetails();
  }
  $("types")?.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose((chosen + step + results.length) % results.length);
    tabs[chosen].focus();
  });

  // ------------------------------------------------------------------ the details

  // Shows a module of a result; ``reveal`` unfolds the flow down to it.
  function select(number, path, { focus = false, reveal = false } = {}) {
    state[number].selected = path;
    if (reveal) {
      for (const above of around(path === LOSS ? "" : path)) state[number].unfolded.add(above);
      state[number].focused = path;
    }
    if (number !== chosen) choose(number);
    if (reveal) drawTree();
    else markSelected();
    if (focus) focusRow(path);
    drawDetails();
    if (reveal) {
      const item = rowOf(path);
      if (item) scroller.scrollTop = Math.max(0, item.offsetTop - scroller.clientHeight / 2);
    }
    $("details").scrollTop = 0;
    if (matchMedia("(max-width: 1050px)").matches) $("details").scrollIntoView({ block: "nearest" });
  }
  const linkTo = (path) => make("button", { type: "button", class: "mono", click: () => select(chosen, path, { reveal: true }) }, naming(path));
  const crumbs = (path) => make("nav", { class: "crumbs", "aria-label": "The module and those around it" },
    ...trail(path, (above) => select(chosen, above, { reveal: true })));
  function sourceOf(place) {
    const where = make("p", { class: "mono" }, `${place[FILE]}:${place[LINE]}${place[FUNCTION] ? ` in ${place[FUNCTION]}` : ""}`);
    if (!place[SOURCE].length) return [where];
    return [where, make("pre", { class: "source", tabindex: "0", "aria-label": "Source lines" }, ...place[SOURCE].map(([line, text]) =>
      make("div", line === place[LINE] ? { class: "here" } : {}, make("span", { class: "number", "aria-hidden": "true" }, line === place[LINE] ? `▸ ${line}` : line), make("code", {}, text || " "))))];
  }
  function entryOf(result, row) {
    if (row[ENTRY] === null) {
      if (!result.rules || !UNUSED.includes(row[STATUS])) return [];
      return [make("h4", {}, "Rule entry"), make("p", {}, `No entry of ${result.rules} documents this.`)];
    }
    const entry = result.entries[row[ENTRY]];
    const lines = [
      "[[unused]]", `params = [${entry[PARAMS].map((glob) => JSON.stringify(glob)).join(", ")}]`,
      `reason = ${JSON.stringify(entry[REASON])}`, `action = ${JSON.stringify(entry[ACTION])}`,
      ...(entry[WHEN] === "never" ? [] : [`when = ${JSON.stringify(entry[WHEN])}`]),
    ];
    return [
      make("h4", {}, "Rule entry"),
      make("p", { class: "mono" }, `${result.rules}:${entry[AT]}`),
      make("p", {}, `${capital(entry[REASON])}${/[.!?]$/.test(entry[REASON]) ? "" : "."}`),
      make("pre", { tabindex: "0", "aria-label": "The entry as TOML" }, make("code", {}, lines.join("\n"))),
      row[DOCUMENTED] || row[STATUS] === "frozen" ? null : make("p", {}, "The trace does not find what this entry says."),
    ];
  }
  // Parameters that one cause, place and entry explain, as one group.
  function groupsOf(result, numbers) {
    const groups = new Map();
    for (const number of numbers) {
      const row = result.parameters[number];
      if (row[CAUSE] === null && row[ENTRY] === null) continue;
      const key = [row[CAUSE], row[PLACE] ?? `why ${row[WHY]}`, row[ENTRY], row[STATUS]].join("|");
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(number);
    }
    return [...groups.values()];
  }
  function under(result, path) {
    const prefix = `${path}.`;
    return result.parameters.flatMap((row, number) => (path === "" || row[MODULE] === path || row[MODULE].startsWith(prefix) ? [number] : []));
  }
  function flowOf(result, path) {
    const inside = (end) => end !== null && (path === "" || end === path || end.startsWith(`${path}.`));
    const best = { from: new Map(), to: new Map() };
    for (const [consumer, producer, flow, place] of result.edges) {
      const [into, out] = path === LOSS ? [false, consumer === null] : [inside(producer) && !inside(consumer), inside(consumer) && !inside(producer)];
      if (!into && !out) continue;
      const side = into ? best.from : best.to, other = into ? consumer : producer, known = side.get(other);
      if (!known || FLOWS.indexOf(flow) < FLOWS.indexOf(known.flow)) side.set(other, { flow, place });
    }
    return best;
  }
  function flowList(heading, ends, result) {
    if (!ends.size) return [];
    const items = [...ends].slice(0, 8).map(([end, { flow, place }]) => {
      const how = { gradient: "", cut: " — the gradient is cut", dropped: " — the value never reaches the loss" }[flow];
      const where = place === null ? "" : ` at ${result.places[place][FILE]}:${result.places[place][LINE]}`;
      return make("li", {}, linkTo(end === null ? LOSS : end), `${how}${where}`);
    });
    if (ends.size > 8) items.push(make("li", {}, `and ${grouped(ends.size - 8)} more`));
    return [make("h4", {}, heading), make("ul", { class: "ends" }, ...items)];
  }
  function parametersOf(result, numbers) {
    const listed = numbers.slice(0, LISTED).map((number) => {
      const row = result.parameters[number];
      const also = row[ALIASES].length ? make("div", { class: "hint" }, `also ${row[ALIASES].join(", ")}`) : null;
      return make("tr", {}, make("th", { scope: "row", class: "mono" }, row[NAME].split(".").pop(), also), make("td", { class: "mono" }, `${row[SHAPE].join("×") || "scalar"} ${result.texts[row[DTYPE]]}`),
        make("td", { class: "num" }, size(row[BYTES])), make("td", {}, statusLabel(row[STATUS])));
    });
    return make("table", {}, make("caption", { class: "hidden" }, "Parameters of this module"),
      make("thead", {}, make("tr", {}, ...["Name", "Shape", "Bytes", "Status"].map((name) => make("th", { scope: "col", class: name === "Bytes" ? "num" : "" }, name)))),
      make("tbody", {}, ...listed));
  }
  function partsOf(result, module) {
    const listed = module.flowing.slice(0, LISTED).map((part) => {
      const go = () => select(chosen, part.path, { reveal: true });
      return make("tr", {}, make("th", { scope: "row" }, make("button", { type: "button", class: "mono", click: go }, part.path.slice(module.path ? module.path.length + 1 : 0))),
        make("td", { class: "num" }, size(part.bytes)), make("td", { class: "num" }, part.count ? percent(unusedBytes(part), part.bytes) : ""));
    });
    return make("table", {}, make("caption", { class: "hidden" }, "Parts of this module"),
      make("thead", {}, make("tr", {}, ...["Part", "Bytes", "Unused"].map((name, at) => make("th", { scope: "col", class: at ? "num" : "" }, name)))),
      make("tbody", {}, ...listed));
  }
  function drawDetails() {
    const result = results[chosen], path = state[chosen].selected, details = $("details");
    if (path === null) {
      details.replaceChildren(
        make("h2", { id: "details-heading" }, "Details"),
        make("p", { class: "hint" }, "Choose a module in the map, in the flow or in the table: here come its parameters, why they are unused, the source lines, and the rule that documents them."),
        ...mostUnused(result),
      );
      return;
    }
    const module = result.modules.get(path) ?? { path, own: [], children: [], flowing: [], count: 0, bytes: 0, numel: 0, held: {}, type: "", status: "used" };
    const numbers = path === LOSS ? [] : under(result, path), whole = result.modules.get("");
    const groups = groupsOf(result, numbers);
    const flow = flowOf(result, path);
    const content = [
      make("h2", { id: "details-heading" }, results.length > 1 ? `Details · ${result.title}` : "Details"),
      crumbs(path),
      make("h3", { class: "mono" }, naming(path)),
    ];
    if (module.count) {
      content.push(
        make("p", {}, statusLabel(module.status), module.type ? ` · ${module.type}` : ""),
        make("dl", {},
          make("dt", {}, "Parameters"), make("dd", {}, `${grouped(module.count)} (${grouped(module.numel)} weights)`),
          make("dt", {}, "Bytes"), make("dd", {}, `${size(module.bytes)}, ${percent(module.bytes, whole.bytes)} of the model`),
          ...(module.status === "mixed" ? STATUSES.filter((status) => module.held[status]).flatMap((status) => [
            make("dt", {}, statusLabel(status)), make("dd", {}, `${grouped(module.held[status].count)}, ${size(module.held[status].bytes)}`)]) : [])),
      );
    }
    for (const group of groups.slice(0, 6)) content.push(groupBox(result, group, module));
    if (groups.length > 6) content.push(make("p", { class: "hint" }, `${count(groups.length - 6, "more group")}: choose a part, or see the table.`));
    const about = new Set(numbers);
    const findings = result.findings.filter((finding) => finding[ABOUT].some((number) => about.has(number)));
    if (findings.length) {
      content.push(make("h4", {}, findings.length === 1 ? "Finding" : "Findings"), ...findings.slice(0, 5).flatMap((finding) => [
        make("p", {}, make("span", { class: `badge ${finding[SEVERITY]}` }, finding[SEVERITY]), ` ${finding[CODE]} ${finding[TITLE]}: `, ...prose(finding[MESSAGE])),
        make("p", {}, make("strong", {}, "What to do: "), ...prose(finding[FIX].split("\n")[0])),
        ...(finding[FIX].includes("\n") ? [make("pre", { tabindex: "0", "aria-label": "What to write" }, make("code", {}, finding[FIX].split("\n").slice(1).join("\n")))] : []),
      ]));
    }
    if (module.own.length) content.push(make("h4", {}, "Parameters"), parametersOf(result, module.own));
    if (module.children.length) content.push(make("h4", {}, "Parts"), partsOf(result, module));
    if (Math.max(module.own.length, module.children.length) > LISTED) content.push(make("p", { class: "hint" }, `The first ${LISTED} are shown.`));
    if (numbers.length && path !== "") content.push(make("p", {}, make("button", { type: "button", click: () => searchFor(path) }, `Show ${numbers.length === 1 ? "it" : `all ${grouped(numbers.length)}`} in the table`)));
    content.push(...flowList("Gradient comes from", flow.from, result), ...flowList(path === LOSS ? "The loss is made of" : "And goes on to", flow.to, result));
    if (path !== LOSS && !flow.from.size && !flow.to.size && path !== "" && result.edges.length) content.push(make("p", { class: "hint" }, "No operation takes a value from this module."));
    if (results.length > 1 && path !== LOSS) content.push(...elsewhere(path));
    details.replaceChildren(...content);
  }
  function groupBox(result, group, module) {
    const row = result.parameters[group[0]];
    const box = make("div", { class: `group ${row[STATUS]}` });
    const of = group.length === module.count ? (group.length === 1 ? "The parameter is" : `All ${grouped(group.length)} parameters are`) : `${count(group.length, "parameter")} ${group.length === 1 ? "is" : "are"}`;
    const possible = row[EVIDENCE] === "possible" ? ", possibly" : "";
    box.append(make("h4", {}, `${of} ${DATA.statuses[row[STATUS]]}${possible}${row[CAUSE] ? `: ${row[CAUSE]}` : ""}`));
    const reasons = [...new Set(group.map((number) => result.texts[result.parameters[number][WHY]]))].filter(Boolean);
    box.append(...reasons.slice(0, 3).map((why) => make("p", {}, ...prose(`${capital(why)}.`))));
    if (reasons.length > 3) box.append(make("p", { class: "hint" }, `${count(reasons.length - 3, "more reason")} like these.`));
    if (row[PLACE] !== null) box.append(...sourceOf(result.places[row[PLACE]]));
    box.append(...entryOf(result, row).filter((part) => part !== null));
    return box;
  }
  function elsewhere(path) {
    const items = results.flatMap((result, number) => {
      if (number === chosen) return [];
      const module = result.modules.get(path);
      const name = make("button", { type: "button", click: () => select(number, path, { reveal: true }) }, result.title);
      if (!module?.count) return [make("li", {}, `${result.title}: not in this model`)];
      return [make("li", {}, name, " ", module.status === "mixed" ? `${percent(unusedBytes(module), module.bytes)} of its bytes unused` : statusLabel(module.status))];
    });
    return [make("h4", {}, "In the other checkpoint types"), make("ul", { class: "ends" }, ...items)];
  }
  // The largest modules that are wholly unused: where to start.
  function mostUnused(result) {
    const found = [], visit = (module) => {
      if (module.count && module.status !== "mixed") {
        if (UNUSED.includes(module.status)) found.push(module);
      } else if (module.children.length) module.children.forEach(visit);
    };
    visit(result.modules.get(""));
    if (!found.length) return [];
    const items = found.sort((a, b) => b.bytes - a.bytes).slice(0, 12).map((module) => make("li", {}, swatch(module.status), linkTo(module.path), make("span", { class: "amount" }, size(module.bytes))));
    return [make("h3", {}, results.length > 1 ? `Largest unused parts of ${result.title}` : "Largest unused parts"), make("ul", { class: "largest" }, ...items)];
  }

  // ------------------------------------------------------------------ the table

  const columns = [
    ...(results.length > 1 ? [["Checkpoint type", (e) => results[e.at].title]] : []),
    ["Parameter", (e) => e.row[NAME]],
    ["Module type", (e) => results[e.at].texts[e.row[TYPE]]],
    ["Shape", (e) => e.row[NUMEL], true],
    ["Bytes", (e) => e.row[BYTES], true],
    ["Status", (e) => STATUSES.indexOf(e.row[STATUS])],
    ["Cause", (e) => e.row[CAUSE] ?? "\uffff"],
    ["Place", (e) => placeOf(e) || "\uffff"],
  ];
  const placeOf = ({ at, row }) => (row[PLACE] === null ? "" : `${results[at].places[row[PLACE]][FILE]}:${results[at].places[row[PLACE]][LINE]}`);
  const everything = results.flatMap((result, at) => result.parameters.map((row) => ({ at, row })));
  for (const entry of everything) {
    const result = results[entry.at], rule = entry.row[ENTRY] === null ? "" : result.entries[entry.row[ENTRY]][REASON];
    entry.text = [entry.row[NAME], ...entry.row[ALIASES], result.texts[entry.row[TYPE]], entry.row[CAUSE] ?? "", placeOf(entry), result.texts[entry.row[WHY]], rule].join("\n").toLowerCase();
  }
  const statusColumn = columns.findIndex(([name]) => name === "Status");
  let sorted = { column: statusColumn, down: false }, page = 0, found = everything;
  const heads = columns.map(([name, , numeric], at) => {
    const button = make("button", { type: "button", click: () => {
      sorted = { column: at, down: sorted.column === at ? !sorted.down : Boolean(numeric) };
      page = 0;
      drawTable();
    } }, name, make("span", { "aria-hidden": "true" }, ""));
    return make("th", { scope: "col", class: numeric ? "num" : "" }, button);
  });
  $("table").tHead.rows[0].append(...heads);
  $("status").append(make("option", { value: "" }, "all"), make("option", { value: "unused" }, "not used on every path"),
    ...STATUSES.filter(present).map((status) => make("option", { value: status }, DATA.statuses[status])));
  $("which").append(make("option", { value: "" }, "all"), ...results.map((result, at) => make("option", { value: at }, result.title)));
  $("which-label").hidden = results.length === 1;
  function drawTable() {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), status = $("status").value, which = $("which").value;
    found = everything.filter((entry) =>
      words.every((word) => entry.text.includes(word)) && (which === "" || entry.at === Number(which)) &&
      (status === "" || entry.row[STATUS] === status || (status === "unused" && UNUSED.includes(entry.row[STATUS]))));
    const value = columns[sorted.column][1], sign = sorted.down ? -1 : 1;
    const keyed = found.map((entry) => [value(entry), entry]);
    keyed.sort(([a], [b]) => (a < b ? -sign : a > b ? sign : 0)); // stable: the model's order within equals
    found = keyed.map(([, entry]) => entry);
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    page = Math.min(page, pages - 1);
    heads.forEach((head, at) => {
      if (at === sorted.column) head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
      head.querySelector("span").textContent = at === sorted.column ? (sorted.down ? " ▼" : " ▲") : "";
    });
    $("table").tBodies[0].replaceChildren(...found.slice(page * PAGE, (page + 1) * PAGE).map(rowOfTable));
    $("found").textContent = `${count(found.length, "parameter")} of ${grouped(everything.length)}, ${size(found.reduce((sum, entry) => sum + entry.row[BYTES], 0))}`;
    $("page").textContent = `Page ${page + 1} of ${pages}`;
    $("previous").disabled = page === 0;
    $("next").disabled = page === pages - 1;
    document.querySelector(".pages").hidden = pages === 1;
  }
  function rowOfTable(entry) {
    const { at, row } = entry, result = results[at];
    const open = () => { select(at, row[MODULE], { reveal: true }); $("details").focus(); };
    return make("tr", {},
      ...(results.length > 1 ? [make("td", {}, result.title)] : []),
      make("td", { class: "mono" }, make("button", { type: "button", click: open, title: "Show its module" }, row[NAME])),
      make("td", {}, result.texts[row[TYPE]]),
      make("td", { class: "num mono" }, row[SHAPE].join("×") || "scalar"),
      make("td", { class: "num" }, size(row[BYTES])),
      make("td", {}, statusLabel(row[STATUS])),
      make("td", {}, row[CAUSE] ?? ""),
      make("td", { class: "mono" }, placeOf(entry)));
  }
  function searchFor(path) {
    $("search").value = path;
    $("status").value = "";
    $("which").value = results.length > 1 ? String(chosen) : "";
    page = 0;
    drawTable();
    $("search").focus();
    $("parameters").scrollIntoView();
  }
  for (const id of ["search", "status", "which"]) $(id).addEventListener("input", () => { page = 0; drawTable(); });
  $("previous").addEventListener("click", () => { page -= 1; drawTable(); });
  $("next").addEventListener("click", () => { page += 1; drawTable(); });

  // ------------------------------------------------------------------ at the start

  $("explorer").hidden = $("parameters").hidden = false;
  choose(0);
  drawTable();
  addEventListener("DOMContentLoaded", () => { // Plotly is the last script: nothing else waits for it
    drawMaps();
    document.documentElement.dataset.ready = "true";
  });
})();
