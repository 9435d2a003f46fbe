// Draws the curves of the page's data, keeps the page up to date when it is served, and answers its few controls.
"use strict";
(() => {
  let page = JSON.parse(document.getElementById("page-data").textContent);
  const charts = document.getElementById("charts");
  const slider = document.getElementById("smoothing");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const drawn = new Map();
  let playing = !calm.matches;

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const make = (tag, about = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), about);
    element.append(...children);
    return element;
  };
  const short = value => Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3)
    ? value.toExponential(3) : value.toLocaleString("en", {maximumSignificantDigits: 5});

  // At each point a line is fitted to the values on both sides, which weigh exponentially less with their distance. So
  // the smoothed curve neither lags behind the values nor bends away from them at its ends.
  function smooth(values, weight) {
    const reach = weight > 0 ? Math.ceil(Math.log(1e-3) / Math.log(weight)) : 0;
    return values.map((value, index) => {
      let s0 = 0, s1 = 0, s2 = 0, t0 = 0, t1 = 0;
      for (let other = Math.max(0, index - reach); other <= Math.min(values.length - 1, index + reach); other++) {
        const away = other - index, share = weight ** Math.abs(away);
        s0 += share; s1 += share * away; s2 += share * away * away;
        t0 += share * values[other]; t1 += share * away * values[other];
      }
      const spread = s0 * s2 - s1 * s1;
      return spread > 1e-9 ? (t0 * s2 - t1 * s1) / spread : t0 / s0;
    });
  }

  function columns(line) {
    const weight = slider && line.smooth ? Number(slider.value) : 0;
    const data = {x: line.x, y: line.y, s: smooth(line.y, weight)};
    return line.low ? {...data, low: line.low, high: line.high} : data;
  }

  const last = (spec, line) => `${short(line.last[1])}${spec.unit ? ` ${spec.unit}` : ""}`;

  const over = spec => spec.over ?? "step";

  // What a chart says in words; of several lines the legend says it.
  function summary(spec) {
    const told = [], [line] = spec.lines;
    if (spec.lines.length === 1 && !spec.axes) {
      if (!line.points) told.push(`${last(spec, line)} at ${over(spec)} ${short(line.last[0])}`);
      const [at, least] = line.least;
      told.push(`min ${short(least)} at ${spec.ticks ? spec.ticks[at] : short(at)}`, `max ${short(line.greatest[1])}`);
    }
    if (byRun(spec)) told.push(labels(spec).length > DASHES.length ? `a line each for ${labels(spec).join(", ")}`
      : labels(spec).map((name, index) => `${DASHES[index][0]}: ${name}`).join(", "));
    if (spec.more) told.push(`${spec.more} more lines are in metrics.jsonl`);
    return told.join(" · ");
  }

  const labels = spec => [...new Set(spec.lines.map(line => line.label))];
  const label = (spec, line) =>
    page.runs < 2 ? line.label : labels(spec).length > 1 ? `${line.name} · ${line.label}` : line.name;

  // The color of a run in a comparison; on the page of one run that of a line, in a ramp where lines have an order.
  function lineColour(spec, line, index) {
    if (page.runs > 1) return colour(`c${line.run % 10}`);
    const ordered = spec.lines.length > 2 && spec.lines.every(line => line.label !== "" && Number.isFinite(Number(line.label)));
    if (!ordered) return colour(`c${index % 10}`);
    const ends = ["c0", "c4"].map(name => colour(name).slice(1).match(/../g).map(part => parseInt(part, 16)));
    const place = index / (spec.lines.length - 1);
    return `#${ends[0].map((part, k) => Math.round(part + place * (ends[1][k] - part)).toString(16).padStart(2, "0")).join("")}`;
  }

  // In a comparison the dashes tell the lines of one run apart, unless there are more lines than dashes.
  const DASHES = [["solid", []], ["dashed", [7, 4]], ["dotted", [2, 3]], ["double", [9, 3, 2, 3]]];
  function dashOf(spec, line) {
    const known = labels(spec);
    return DASHES[page.runs > 1 && known.length <= DASHES.length ? known.indexOf(line.label) : 0];
  }

  // Whether a legend has one entry for each run instead of one for each line.
  const byRun = spec => page.runs > 1 && labels(spec).length > 1
    && (labels(spec).length > DASHES.length || spec.lines.length > 8);

  // The entries of a legend: the lines that one button shows and hides.
  function entries(spec) {
    if (spec.lines.length < 2) return [];
    if (!byRun(spec))
      return spec.lines.map((line, index) => ({name: label(spec, line), lines: [index]}));
    const runs = [...new Set(spec.lines.map(line => line.run))];
    return runs.map(run => {
      const lines = spec.lines.flatMap((line, index) => line.run === run ? [index] : []);
      return {name: spec.lines[lines[0]].name, lines};
    });
  }

  function add(spec) {
    const plot = make("div", {className: "plot"});
    plot.setAttribute("role", "img");
    const legend = make("div", {className: "legend"}), text = make("p", {className: "summary"});
    const scale = make("button", {type: "button"}), reset = make("button", {type: "button", textContent: "reset"});
    const unit = spec.unit ? make("small", {textContent: ` ${spec.unit}`}) : "";
    const box = make("figure", {className: spec.axes ? "chart across scroll" : "chart"},
      make("figcaption", {}, make("h3", {}, spec.title, unit), scale, reset), plot, legend, text);
    charts.append(box);
    const chart = {spec, plot, legend, text, scale, log: spec.log, hidden: new Set()};
    scale.onclick = () => { chart.log = !chart.log; draw(chart); };
    reset.onclick = () => chart.figure.reset.emit();
    reset.hidden = touch;
    reset.setAttribute("aria-label", `${spec.title}: show everything`);
    drawn.set(spec.id, chart);
    draw(chart);
  }

  function put(chart, figure) {
    chart.figure = figure;
    tell(chart);
    chart.plot.replaceChildren();
    chart.view?.then?.(view => [view].flat().forEach(one => one.remove?.()));
    chart.view = Bokeh.Plotting.show(figure, chart.plot);
    chart.view.then(() => skipFocus(chart.plot));
  }

  // Parallel coordinates: an axis for each of `spec.axes`, from 0 to 1, and a line for each trial.
  function drawAcross(chart) {
    const {spec} = chart, quiet = colour("quiet"), count = spec.axes.length;
    chart.scale.hidden = true;
    chart.sources = [];
    chart.plot.style.minWidth = `${6.5 * count}rem`;
    const figure = Bokeh.Plotting.figure({
      height: 300, sizing_mode: "stretch_width", toolbar_location: null, tools: [], outline_line_color: null,
      background_fill_color: null, border_fill_color: null, output_backend: "canvas",
      x_range: [-0.25, count - 0.5], y_range: [-0.06, 1.06],
    });
    const [axis] = figure.xaxes;
    axis.setv({axis_line_color: null, major_tick_line_color: null, minor_tick_line_color: null,
      major_label_text_color: colour("text"), major_label_text_font_size: "12px", major_label_text_font: "system-ui"});
    axis.ticker = new Bokeh.FixedTicker({ticks: spec.axes.map((_, index) => index)});
    axis.major_label_overrides = new Map(spec.axes.map((found, index) => [index, found.name]));
    figure.yaxes[0].visible = false;
    for (const lines of figure.grids) lines.grid_line_color = null;
    const at = name => ({field: name});
    spec.axes.forEach((found, index) => figure.segment(index, 0, index, 1, {line_color: quiet, line_width: 1}));
    const field = name => spec.lines.map(line => line[name]);
    const source = new Bokeh.ColumnDataSource({data: {
      xs: field("x"), ys: field("y"), label: field("label"), told: field("told"), alpha: field("alpha"),
      width: field("width"), line_color: spec.lines.map(line => colour(line.colour)),
    }});
    const drawing = figure.multi_line(at("xs"), at("ys"), {source, line_color: at("line_color"), line_width: at("width"),
      line_alpha: at("alpha"), line_join: "round"});
    figure.add_tools(new Bokeh.HoverTool({renderers: [drawing], line_policy: "interp", tooltips: [["", "@label"], ["", "@told"]]}));
    const ticks = spec.axes.flatMap((found, index) => found.ticks.map(([place, text]) => ({x: index, y: place, text})));
    const labels = new Bokeh.ColumnDataSource({data: {x: ticks.map(t => t.x), y: ticks.map(t => t.y), text: ticks.map(t => t.text)}});
    figure.text(at("x"), at("y"), at("text"), {source: labels, text_color: quiet, text_font_size: "11px",
      text_font: "system-ui", text_baseline: "middle", x_offset: 5});
    put(chart, figure);
  }

  function draw(chart) {
    if (chart.spec.axes) { drawAcross(chart); return; }
    const {spec} = chart, quiet = colour("quiet"), grid = colour("line");
    const positive = spec.lines.every(line => line.least[1] > 0);
    const log = chart.log && positive;
    chart.scale.hidden = !positive;
    chart.scale.textContent = log ? "linear" : "log";
    chart.scale.setAttribute("aria-label", `${spec.title}: ${log ? "linear" : "logarithmic"} scale`);
    const figure = Bokeh.Plotting.figure({
      height: 244, sizing_mode: "stretch_width", toolbar_location: null, tools: touch ? [] : ["box_zoom", "reset"],
      y_axis_type: log ? "log" : "linear", x_axis_type: spec.log_over ? "log" : "linear", background_fill_color: null, border_fill_color: null, outline_line_color: null,
      min_border: 4, min_border_right: 14, output_backend: "canvas",
    });
    for (const axis of figure.axes)
      axis.setv({axis_line_color: grid, major_tick_line_color: grid, minor_tick_line_color: null,
        major_label_text_color: quiet, major_label_text_font_size: "11px", major_label_text_font: "system-ui"});
    const [across] = figure.xaxes, [up] = figure.yaxes;
    across.setv({axis_label: over(spec), axis_label_text_color: quiet, axis_label_text_font_size: "11px",
      axis_label_text_font: "system-ui", axis_label_text_font_style: "normal", axis_label_standoff: 1});
    up.ticker.desired_num_ticks = 5;
    up.formatter = new Bokeh.CustomJSTickFormatter({code: `
      const value = Number(tick.toPrecision(6)), size = Math.abs(value);
      return value && (size < 1e-3 || size >= 1e6) ? value.toExponential().replace("e+", "e") : String(value);`});
    if (spec.ticks) {
      across.ticker = new Bokeh.FixedTicker({ticks: spec.ticks.map((_, index) => index)});
      across.major_label_overrides = new Map(spec.ticks.map((text, index) => [index, text]));
    } else if (spec.stops?.length) {
      across.ticker = new Bokeh.FixedTicker({ticks: spec.stops.map(([value]) => value)});
      across.major_label_overrides = new Map(spec.stops);
    } else {
      across.ticker.setv({desired_num_ticks: 5, min_interval: spec.over ? 0 : 1});
      across.formatter.use_scientific = false;
    }
    for (const lines of figure.grids) lines.grid_line_color = grid;
    figure.xgrids[0].ticker = across.ticker;
    for (const range of [figure.x_range, figure.y_range]) range.only_visible = true;
    const shows = [];
    chart.sources = [];
    spec.lines.forEach((line, index) => {
      const line_color = lineColour(spec, line, index), [, line_dash] = dashOf(spec, line);
      const source = new Bokeh.ColumnDataSource({data: columns(line)});
      const at = name => ({field: name}), drawings = [];
      const width = line_width => ({source, line_color, line_width, line_join: "round"});
      if (line.low)
        drawings.push(figure.varea(at("x"), at("low"), at("high"), {source, fill_color: line_color, fill_alpha: 0.14}));
      if (line.smooth) drawings.push(figure.line(at("x"), at("y"), {...width(1), line_alpha: spec.lines.length > 4 ? 0.12 : 0.3}));
      if (!line.points) drawings.push(figure.line(at("x"), at("s"), {...width(spec.lines.length > 8 ? 1.5 : line.smooth ? 2.2 : 1.8), line_dash}));
      const dots = line.points || (!line.smooth && line.x.length < 40)
        ? [figure.scatter(at("x"), at("y"), {source, size: line.points ? 7 : 5, fill_color: line_color, line_color: null})] : [];
      const [hovered] = line.points ? dots : drawings.slice(-1);
      drawings.push(...dots);
      const told = [[over(spec), spec.ticks || spec.log_over ? "@x" : "@x{0,0}"], [spec.lines.length > 1 ? "$name" : "value", `@y${log ? "{0.000e+0}" : "{0.[000000]}"}`]];
      hovered.name = label(spec, line);
      const mode = line.points || spec.lines.length > 4 ? "mouse" : "vline";
      figure.add_tools(new Bokeh.HoverTool({renderers: [hovered], tooltips: told, mode}));
      chart.sources.push(source);
      shows.push(on => drawings.forEach(drawing => { drawing.visible = on; }));
      shows[index](!chart.hidden.has(index));
    });
    chart.entries = entries(spec);
    chart.legend.replaceChildren(...chart.entries.map(entry => toggle(chart, entry, shows)));
    put(chart, figure);
  }

  // What is drawn is no stop of the Tab key: keys do nothing there.
  function skipFocus(node) {
    for (const element of node.querySelectorAll("*")) {
      if (element.hasAttribute("tabindex")) element.tabIndex = -1;
      if (element.shadowRoot) skipFocus(element.shadowRoot);
    }
  }

  const lastOf = (spec, {lines}) => lines.length === 1 ? last(spec, spec.lines[lines[0]]) : "";

  function toggle(chart, entry, shows) {
    const {spec} = chart, line = spec.lines[entry.lines[0]];
    const swatch = make("span", {className: line.points ? "swatch dot" : "swatch"});
    swatch.style.color = lineColour(spec, line, entry.lines[0]);
    swatch.style.borderTopStyle = byRun(spec) ? "solid" : dashOf(spec, line)[0];
    const button = make("button", {type: "button"}, swatch, entry.name, make("small", {textContent: lastOf(spec, entry)}));
    const is_shown = () => entry.lines.some(index => !chart.hidden.has(index));
    button.setAttribute("aria-pressed", String(is_shown()));
    button.onclick = () => {
      const on = !is_shown();
      for (const index of entry.lines) {
        chart.hidden[on ? "delete" : "add"](index);
        shows[index](on);
      }
      button.setAttribute("aria-pressed", String(on));
    };
    return button;
  }

  function tell(chart) {
    const {spec} = chart;
    chart.text.textContent = summary(spec);
    chart.plot.setAttribute("aria-label", `${spec.title}${spec.axes ? "" : ` over ${spec.over ?? "steps"}`}. ${chart.text.textContent}`);
    chart.legend.querySelectorAll("small").forEach((value, index) => { value.textContent = lastOf(spec, chart.entries[index]); });
  }

  const shape = spec => JSON.stringify(spec.lines.map(line => [line.run, line.label, Boolean(line.low), line.smooth, line.x.length < 40]));

  function show(specs) {
    for (const spec of specs) {
      const chart = drawn.get(spec.id);
      if (!chart) { add(spec); continue; }
      const before = chart.spec;
      chart.spec = spec;
      if (shape(spec) !== shape(before)) draw(chart);
      else if (JSON.stringify(spec) !== JSON.stringify(before)) {
        spec.lines.forEach((line, index) => { chart.sources[index].data = columns(line); });
        tell(chart);
      }
    }
  }

  // A section is replaced only when it says something else than before: what is open in it stays open.
  function replace(section, text) {
    const open = [...section.querySelectorAll("details")].map(details => details.open);
    const focused = [...section.querySelectorAll("a, button, summary, input, [tabindex]")].indexOf(document.activeElement);
    section.innerHTML = text;
    section.querySelectorAll("details").forEach((details, index) => { details.open = open[index] ?? details.open; });
    if (focused >= 0) [...section.querySelectorAll("a, button, summary, input, [tabindex]")][focused]?.focus();
    watchVideos(section);
    showNewest(section);
  }

  // The strips of one run begin with the oldest sample: they are scrolled to the newest, next to the real clip, which stays.
  function showNewest(root) {
    if (page.runs > 1) return;
    for (const strip of root.querySelectorAll(".strip")) strip.scrollLeft = strip.scrollWidth;
  }

  async function refresh() {
    try {
      const answer = await fetch("data.json", {cache: "no-store"});
      const next = await answer.json();
      for (const [name, text] of Object.entries(next.sections)) {
        const section = document.getElementById(name);
        if (!section || next.hashes[name] === page.hashes[name]) continue;
        if (name !== "curves") replace(section, text);
        else document.getElementById("curve-notes").replaceWith(make("template", {innerHTML: text}).content.getElementById("curve-notes"));
      }
      page = {...page, ...next};
      document.title = page.title;
      show(page.charts);
      note("");
    } catch {
      note("The page is no longer kept up to date: `worldsmith watch` has ended.");
    }
    ago();
    setTimeout(refresh, 2000);
  }

  function note(text) {
    const stale = document.getElementById("stale");
    stale.hidden = !text;
    if (stale.textContent !== text) stale.textContent = text;
  }

  function since(seconds) {
    const [size, name] = [[86400, "days"], [3600, "hours"], [60, "minutes"]].find(([size]) => seconds >= 2 * size) ?? [1, "seconds"];
    return `${Math.max(0, Math.floor(seconds / size))} ${name} ago`;
  }

  function ago() {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      time.title ||= time.textContent;
      const text = since((Date.now() - Date.parse(time.dateTime)) / 1000);
      if (time.textContent !== text) time.textContent = text;
    }
    const age = (Date.now() - Date.parse(page.written)) / 1000;
    if (!page.live && page.at_work && age > 600)
      note(`This page was written ${since(age)}, while the run was active. Reload it, or rebuild it with \`worldsmith report\`.`);
  }

  const seen = new IntersectionObserver(entries => entries.forEach(({target, isIntersecting}) => {
    if (isIntersecting && playing) target.play().catch(() => {});
    else target.pause();
  }));
  // The controls would hide half of a small video: they are shown while it is pointed at or focused.
  const watchVideos = root => root.querySelectorAll("video").forEach(video => {
    seen.observe(video);
    video.controls = false;
    video.tabIndex = 0;
    for (const event of ["pointerenter", "focus"]) video.addEventListener(event, () => { video.controls = true; });
    for (const event of ["pointerleave", "blur"]) video.addEventListener(event, () => { video.controls = false; });
  });

  function filter() {
    const words = document.getElementById("config-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const changed = document.getElementById("config-changed")?.checked;
    let shown = 0;
    for (const row of document.querySelectorAll(".config tbody tr")) {
      const text = row.textContent.toLowerCase();
      row.hidden = (changed && !row.classList.contains("changed")) || !words.every(word => text.includes(word));
      shown += !row.hidden;
    }
    document.getElementById("config-count").textContent = `${shown} setting${shown === 1 ? "" : "s"}`;
  }

  document.addEventListener("input", ({target}) => {
    if (target.id.startsWith("config-")) filter();
    if (target !== slider) return;
    slider.nextElementSibling.textContent = Number(slider.value).toFixed(2);
    for (const {spec, sources} of drawn.values())
      spec.lines.forEach((line, index) => { if (line.smooth) sources[index].data = columns(line); });
  });

  document.addEventListener("click", async ({target}) => {
    if (target.matches("[data-play]")) {
      playing = !playing;
      target.textContent = playing ? "Pause the videos" : "Play the videos";
      document.querySelectorAll("video").forEach(video => { seen.unobserve(video); video.pause(); seen.observe(video); });
    }
    if (!target.matches("[data-copy]")) return;
    const code = target.previousElementSibling;
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      target.textContent = "Copied";
    } catch {
      target.textContent = "Selected";
    }
    setTimeout(() => { target.textContent = "Copy"; }, 1500);
  });

  if (!playing) document.querySelector("[data-play]")?.replaceChildren("Play the videos");
  if (document.getElementById("config-changed")) filter();
  Bokeh.set_log_level("error");
  show(page.charts);
  dark.addEventListener("change", () => drawn.forEach(draw));
  watchVideos(document);
  showNewest(document);
  document.addEventListener("toggle", ({target}) => showNewest(target), true);
  ago();
  setInterval(ago, 5000);
  if (page.live) setTimeout(refresh, 2000);
})();
