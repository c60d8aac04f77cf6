"use strict";
// Draws report.html from the JSON in the page. Text of a model or an environment only ever becomes a text node.
(() => {
  // ------------------------------------------------------------------------------------------------- elements

  const make = (space) => (name, attributes = {}, ...children) => {
    const node = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== undefined && value !== null && value !== false) node.setAttribute(key, value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  };
  const el = make();
  const svg = make("http://www.w3.org/2000/svg");
  const parsed = (node) => { try { return JSON.parse(node.textContent); } catch { return null; } }; // null: a damaged line
  const json = (selector) => [...document.querySelectorAll(selector)].map(parsed).filter(Boolean);

  // -------------------------------------------------------------------------------------------------- numbers

  const known = (x) => typeof x === "number" && Number.isFinite(x);
  /** Round as Python prints: of two numbers that are equally near, to the even one. */
  const fixed = (x, digits) => {
    const scaled = x * 10 ** digits, tie = Number.isInteger(4 * x) && Math.abs(scaled % 1) === 0.5;
    return (tie ? (2 * Math.round(scaled / 2)) / 10 ** digits : x).toFixed(digits);
  };
  const percent = (x) => (known(x) ? `${fixed(100 * x, 1)} %` : "–");
  const whole = (x) => (known(x) ? Math.round(x).toLocaleString("en-US") : "–");
  const number = (x) => {
    if (!known(x)) return "–";
    if (x === 0) return "0";
    const size = Math.abs(x);
    if (size >= 1e4) return whole(x);
    if (size < 1e-3) return x.toExponential(1);
    return String(Number(x.toPrecision(3)));
  };
  /** Return the label of each tick, with as many digits as tell them apart. */
  const labels = (values, format) => {
    if (format === percent) return values.map((x) => `${Math.round(100 * x)} %`);
    const digits = Math.ceil(-Math.log10(values[1] - values[0]) - 1e-9); // NaN for a single tick
    return values.map((x) => {
      const size = Math.abs(x);
      if (size >= 1e4) return size >= 1e6 ? `${number(x / 1e6)}M` : `${number(x / 1e3)}k`;
      return x && digits <= 5 ? x.toFixed(Math.max(0, digits)) : number(x);
    });
  };
  const duration = (s) => {
    if (!known(s)) return "–";
    if (s < 90) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
    if (s < 5400) return `${(s / 60).toFixed(0)} min`;
    return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  };
  const gib = (bytes) => `${number(bytes / 2 ** 30)} GiB`;
  const last = (list) => list[list.length - 1];
  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const unique = (list) => [...new Set(list)];
  const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

  /** Return about `count` round numbers within [low, high], but no fewer than two. */
  function ticks(low, high, count) {
    if (!(high > low)) return [low];
    const raw = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    const inside = (step) => {
      const found = [];
      for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) found.push(Math.abs(x) < step / 1e6 ? 0 : x);
      return found;
    };
    const steps = [0.5, 1, 2, 5, 10].map((m) => m * power), first = steps.findIndex((step) => step >= raw * 0.999);
    const found = inside(steps[first]);
    return found.length > 1 ? found : inside(steps[Math.max(0, first - 1)]);
  }

  // ----------------------------------------------------------------------------------------------------- data

  const runs = JSON.parse(document.getElementById("runs").textContent);
  runs.forEach((run, index) => {
    run.index = index;
    run.imitates = run.config.algo === "sft"; // its episodes are an expert's
    run.epochs = run.metrics.filter((r) => known(r.seconds) && known(r.episodes));
    run.evaluations = run.metrics.filter((r) => r.eval);
    run.heldOut = run.metrics.filter((r) => "eval_loss" in r);
    run.phases = run.metrics.filter((r) => r.phases);
    run.parts = json(`script.episodes[data-run="${index}"]`);
    run.episodes = run.parts.flatMap((part) => rowsOf(run, part));
    run.held = json(`script.held-episodes[data-run="${index}"]`).flatMap((part) => rowsOf(run, part));
    run.tasks = JSON.stringify(["env", "eval_split", "order", ...String(run.config.env).split(",")].map((key) => run.config[key]));
    run.family = JSON.stringify({ ...run.config, seed: 0, out: "", threads: 0, products: "" }); // equal: seeds of one setting
  });
  function rowsOf(run, part) {
    const way = known(part.temperature) ? (part.temperature ? 1 : 2) : 0;
    return part.rows.map(([env, outcome, success, score, turns, sampled, length, seed, group, shown], row) => ({
      run, way, id: `episode-${run.index}-${part.episodes}-${way}-${row}`, temperature: part.temperature,
      epoch: part.episodes, env: part.envs[env], outcome: part.outcomes[outcome], success, score, turns, sampled, length, seed, group, shown,
    }));
  }
  const many = runs.length > 1;
  const families = unique(runs.map((run) => run.family)), averaged = families.length < runs.length;
  const colour = (run) => `c${families.indexOf(run.family) % 4}`;
  const lastEpoch = Math.max(1, ...runs.map((run) => last(run.metrics)?.epoch ?? 0));
  const bands = (run, env, key) => run.parts.filter((part) => part.bands[env]).map((part) => [part.episodes, ...part.bands[env][key]]);
  const played = (run, greedy) => run.evaluations.filter((r) => (r.eval.temperature === 0) === greedy);

  // --------------------------------------------------------------------------------------------------- charts

  const charts = [];
  let pending = 0;

  /** Show the values of an epoch in every chart; null: those of the last one. */
  function point(epoch) {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(() => charts.forEach((chart) => chart.show(epoch)));
  }

  /** Return a figure whose `draw(width)` fills it. Charts share the epochs of their horizontal axis and a cursor. */
  function figure({ title, note, below, legend, height = 130, values, body, top = 8, left = 52 }) {
    const output = el("output");
    const place = el("div");
    const save = el("button", { type: "button", title: "save this chart as an SVG file", onclick: () => saveChart(title, place.firstChild, legend ?? runLegend()) }, "\u2193");
    const node = el("figure", {}, el("figcaption", {}, el("b", {}, title), save, output), note ? el("small", {}, note) : null, place, legend ?? null, below ? el("small", {}, below) : null);
    const chart = { node };
    chart.draw = () => {
      const width = Math.max(220, node.clientWidth - 26);
      const frame = { left, right: width - 8, top, bottom: height - 20 };
      const span = Math.max(1, chart.last - chart.first);
      frame.x = (epoch) => frame.left + ((epoch - chart.first) / span) * (frame.right - frame.left);
      chart.frame = frame;
      const cursor = svg("line", { class: "cursor hidden", y1: frame.top, y2: frame.bottom });
      chart.cursor = cursor;
      const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title });
      for (const x of unique(ticks(chart.first, lastEpoch, Math.max(2, width / 110)).map(Math.round)))
        if (x >= chart.first && x <= lastEpoch) drawing.append(svg("text", { x: frame.x(x), y: height - 5, "text-anchor": frame.x(x) > frame.right - 6 ? "end" : "middle" }, String(x)));
      drawing.append(svg("text", { x: frame.left - 6, y: height - 5, "text-anchor": "end" }, "epoch"));
      body(drawing, frame);
      drawing.append(cursor);
      drawing.addEventListener("pointermove", (event) => {
        const box = drawing.getBoundingClientRect();
        const at = ((event.clientX - box.left) / box.width) * width;
        point(clamp(Math.round(chart.first + ((at - frame.left) / (frame.right - frame.left)) * span), chart.first, lastEpoch));
      });
      drawing.addEventListener("pointerleave", () => point(null));
      place.replaceChildren(drawing);
      chart.show(null);
    };
    chart.show = (epoch) => {
      chart.cursor.classList.toggle("hidden", epoch === null);
      if (epoch !== null) for (const key of ["x1", "x2"]) chart.cursor.setAttribute(key, chart.frame.x(epoch));
      output.replaceChildren(epoch === null ? "" : `epoch ${epoch}: `, ...values(epoch));
    };
    [chart.first, chart.last] = [0, lastEpoch];
    charts.push(chart);
    return chart;
  }

  const SHOWN = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "text-anchor"];
  /** Save a chart as an SVG file: the page's style becomes attributes, and title and legend are drawn. */
  function saveChart(title, drawing, legend) {
    const { width, height } = drawing.viewBox.baseVal, copy = drawing.cloneNode(true), nodes = drawing.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((node, i) => { for (const key of SHOWN) node.setAttribute(key, getComputedStyle(nodes[i]).getPropertyValue(key)); });
    copy.querySelector(".cursor").remove();
    const page = getComputedStyle(drawing.closest("figure")), items = legend ? [...legend.children] : [], bottom = height + 18 * items.length;
    const write = (x, y, text, size) => svg("text", { x, y, fill: page.color, "font-size": size, "font-family": page.fontFamily }, text);
    copy.prepend(svg("rect", { y: -30, width, height: bottom + 36, fill: page.backgroundColor }), write(8, -10, title, 15));
    items.forEach((item, i) => copy.append(
      svg("rect", { x: 8, y: height + 18 * i, width: 14, height: 10, fill: getComputedStyle(item.firstElementChild.firstElementChild ?? item.firstElementChild).getPropertyValue("--c") }),
      write(28, height + 18 * i + 9, item.textContent, 12)));
    for (const [key, value] of Object.entries({ viewBox: `0 -30 ${width} ${bottom + 36}`, width, height: bottom + 36 })) copy.setAttribute(key, value);
    const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    el("a", { href: url, download: `${title.replace(/[^\w ,.-]/g, "_")}.svg` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  /** Draw the vertical axis: the label of each tick, and a line across. */
  function scale(drawing, frame, values, y, format, across = true) {
    const texts = labels(values, format);
    values.forEach((v, i) => {
      if (across) drawing.append(svg("line", { class: "grid-line", x1: frame.left, x2: frame.right, y1: y(v), y2: y(v) }));
      drawing.append(svg("text", { class: "tick", x: frame.left - (across ? 6 : 10), y: y(v) + 4, "text-anchor": "end" }, texts[i]));
    });
  }

  const line = (points, frame, y) => points.map(([e, v], i) => `${i ? "L" : "M"}${frame.x(e).toFixed(1)} ${y(v).toFixed(1)}`).join("");

  /** Cut a series where a value is missing. */
  function pieces(points) {
    const found = [[]];
    for (const p of points) known(p[1]) ? last(found).push(p) : found.push([]);
    return found.filter((piece) => piece.length);
  }

  /** Make faint `members` of what several seeds have in common, and add their mean over the epochs that all of them have. */
  function withMeans(series) {
    const kinds = new Map();
    for (const s of series) {
      const key = s.run ? `${s.run.family} ${s.style} ${s.dots}` : s;
      kinds.set(key, [...(kinds.get(key) ?? []), s]);
    }
    return [...kinds.values()].flatMap((own) => {
      if (own.length < 2) return own;
      const values = own.map((s) => new Map(s.points.filter((p) => known(p[1]))));
      const shared = [...values[0].keys()].filter((epoch) => values.every((found) => found.has(epoch)));
      const points = shared.map((epoch) => [epoch, sum(values.map((found) => found.get(epoch))) / own.length]);
      return [...own.map((s) => ({ ...s, member: true, points: s.points.map((p) => p.slice(0, 2)) })), { ...own[0], points }].filter((s) => s.points.length);
    });
  }

  /** series: [{cls, run, style, points: [[epoch, value, low, high]], dots}] */
  function lineChart({ title, note, below, series, format = number, domain, height, legend }) {
    series = withMeans(series.filter((s) => s.points.some((p) => known(p[1]))));
    if (!series.length) return null;
    const all = series.flatMap((s) => s.points.flatMap((p) => p.slice(1))).filter(known);
    let [low, high] = domain ?? [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
    const level = low === high ? low : null;
    if (level !== null) [low, high] = [low - Math.abs(low || 1), high + Math.abs(high || 1)];
    else if (!domain) [low, high] = [low >= 0 && low < 0.3 * high ? 0 : low - (high - low) * 0.06, high + (high - low) * 0.06];
    const chart = figure({
      title, note, below, height, legend,
      values: (epoch) => series.filter((s) => !s.member).map((s) => {
        const at = epoch === null ? last(s.points.filter((p) => known(p[1]))) : s.points.find((p) => p[0] === epoch);
        return at ? el("span", { class: s.cls }, format(at[1])) : null;
      }).filter(Boolean),
      body: (drawing, frame) => {
        const y = (v) => frame.bottom - ((clamp(v, low, high) - low) / (high - low)) * (frame.bottom - frame.top);
        scale(drawing, frame, level === null ? ticks(low, high, Math.max(3, (frame.bottom - frame.top) / 34)) : [level], y, format);
        for (const s of series)
          for (const piece of pieces(s.points)) {
            const banded = piece.filter((p) => known(p[2]) && known(p[3]));
            if (banded.length > 1 && !s.dots)
              drawing.append(svg("path", { class: `area ${s.cls}`, d: `${line(banded.map((p) => [p[0], p[3]]), frame, y)}L${line(banded.map((p) => [p[0], p[2]]).reverse(), frame, y).slice(1)}Z` }));
          }
        for (const s of series)
          for (const piece of pieces(s.points)) {
            if (piece.length > 1) drawing.append(svg("path", { class: `line ${s.cls} ${s.style ?? ""} ${s.member ? "member" : ""}`, d: line(piece, frame, y) }));
            if (s.dots || piece.length === 1)
              for (const [e, v, from, to] of piece) {
                const x = frame.x(e) - (s.shift ?? 0) * (e > chart.first ? 1 : -1);
                if (known(from)) drawing.append(svg("line", { class: `whisker ${s.cls}`, x1: x, x2: x, y1: y(from), y2: y(to) }));
                drawing.append(svg("circle", { class: `${s.style === "dashed" ? "hollow" : "point"} ${s.cls} ${s.member ? "member" : ""}`, cx: x, cy: y(v), r: s.member ? 2.4 : 3.6 }));
              }
          }
      },
    });
    const firsts = series.map((s) => s.points[0][0]);
    chart.first = Math.min(1, ...firsts);
    return chart;
  }

  /** Group epochs so that at most `most` columns remain; return [[first, last, items]]. */
  function columns(parts, most = 120) {
    const size = Math.ceil(parts.length / most);
    const found = [];
    for (let i = 0; i < parts.length; i += size) {
      const items = parts.slice(i, i + size);
      found.push([items[0].epoch, last(items).epoch, items]);
    }
    return found;
  }

  /** A heat map of how often each value occurs in each epoch, with the mean as a line. */
  function heat({ title, note, run, value, format = number }) {
    const byEpoch = new Map();
    for (const e of run.episodes) {
      if (!byEpoch.has(e.epoch)) byEpoch.set(e.epoch, []);
      byEpoch.get(e.epoch).push(value(e));
    }
    const parts = [...byEpoch].map(([epoch, values]) => ({ epoch, values })).sort((a, b) => a.epoch - b.epoch);
    if (!parts.length) return null;
    let low = Infinity, high = -Infinity;
    for (const part of parts) for (const v of part.values) { low = Math.min(low, v); high = Math.max(high, v); }
    const integers = parts.every((part) => part.values.every(Number.isInteger));
    const bins = low === high ? 1 : integers ? Math.min(18, high - low + 1) : 18;
    const top = integers && bins < 18 ? low + bins : high;
    const bin = (v) => (bins === 1 ? 0 : clamp(Math.floor(((v - low) / (top - low)) * bins), 0, bins - 1));
    const mean = (values) => sum(values) / values.length;
    const chart = figure({
      title, note, height: 190,
      values: (epoch) => {
        const part = epoch === null ? last(parts) : parts.find((p) => p.epoch === epoch);
        if (!part) return [];
        const sorted = [...part.values].sort((a, b) => a - b);
        const at = (q) => format(sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))]);
        return [el("span", { class: colour(run) }, format(mean(part.values))), ` (80 %: ${at(0.1)} to ${at(0.9)})`];
      },
      body: (drawing, frame) => {
        const step = (frame.bottom - frame.top) / bins;
        for (const [from, to, items] of columns(parts)) {
          const counts = new Array(bins).fill(0);
          for (const item of items) for (const v of item.values) counts[bin(v)] += 1;
          const total = sum(counts);
          const x0 = frame.x(from - 0.5), x1 = frame.x(to + 0.5);
          counts.forEach((count, i) => {
            if (count) drawing.append(svg("rect", {
              class: `fill ${colour(run)}`, x: x0.toFixed(1), width: Math.max(0.5, x1 - x0 - (x1 - x0 > 5 ? 1 : 0)).toFixed(1), y: (frame.bottom - (i + 1) * step).toFixed(1),
              height: Math.max(1, step - (step > 4 ? 1 : 0)).toFixed(1), "fill-opacity": (0.08 + 0.92 * (count / total) ** 0.7).toFixed(2),
            }));
          });
        }
        const y = (v) => (bins === 1 ? (frame.top + frame.bottom) / 2 : frame.bottom - ((v - low) / (top - low)) * (frame.bottom - frame.top) - (integers && bins < 18 ? step / 2 : 0));
        scale(drawing, frame, bins === 1 ? [low] : ticks(low, high, 4).filter((v) => !integers || Number.isInteger(v)), y, format, false);
        drawing.append(svg("path", { class: "mean", d: line(parts.map((p) => [p.epoch, mean(p.values)]), frame, y) }));
      },
      left: 56,
    });
    [chart.first, chart.last] = [0.5, lastEpoch + 0.5];
    return chart;
  }

  /** Stacked columns. parts: [{epoch, shares: {name: height}}] */
  function stack({ title, note, parts, names, cls, format, legend }) {
    if (!parts.length) return null;
    const total = (part) => sum(Object.values(part.shares));
    const cols = columns(parts).map(([from, to, items]) => {
      const shares = Object.fromEntries(names.map((name) => [name, sum(items.map((i) => i.shares[name] ?? 0)) / items.length]));
      return { from, to, shares };
    });
    const high = cols.map(total).reduce((a, b) => Math.max(a, b), 0) || 1;
    const chart = figure({
      title, note, legend, height: 190,
      values: (epoch) => {
        const part = epoch === null ? last(parts) : parts.find((p) => p.epoch === epoch);
        return part ? names.filter((name) => part.shares[name]).map((name) => el("span", { class: cls(name), title: name }, format(part.shares[name]))) : [];
      },
      body: (drawing, frame) => {
        const y = (v) => frame.bottom - (v / high) * (frame.bottom - frame.top);
        scale(drawing, frame, ticks(0, high, 4), y, format);
        for (const { from, to, shares } of cols) {
          const x0 = frame.x(from - 0.5), x1 = frame.x(to + 0.5);
          let at = 0;
          for (const name of names) {
            if (shares[name]) drawing.append(svg("rect", { class: `fill ${cls(name)}`, x: x0.toFixed(1), width: Math.max(0.5, x1 - x0 - (x1 - x0 > 5 ? 1 : 0)).toFixed(1), y: y(at + shares[name]).toFixed(2), height: Math.max(0, y(at) - y(at + shares[name])).toFixed(2) }));
            at += shares[name];
          }
        }
      },
    });
    [chart.first, chart.last] = [0.5, lastEpoch + 0.5];
    return chart;
  }

  /** Draw a short line as a chart does. kind: "solid", "thin", "points" or "dashed", which has hollow points. */
  const sample = (cls, kind) => svg("svg", { width: 26, height: 10, viewBox: "0 0 26 10", "aria-hidden": "true" },
    svg("path", { class: `line ${cls} ${kind}`, d: "M1 5H25" }),
    kind === "points" || kind === "dashed" ? svg("circle", { class: `${kind === "dashed" ? "hollow" : "point"} ${cls}`, cx: 13, cy: 5, r: 3.6 }) : null);
  const legendOf = (items) => el("div", { class: "legend" }, items.map(([cls, text, kind]) => el("span", {}, kind ? sample(cls, kind) : el("i", { class: cls }), text)));
  const runLegend = (more = []) => (many || more.length ? legendOf([...(many ? families.map((family) => runs.filter((run) => run.family === family)).map((own) => [colour(own[0]), own.map((run) => run.name).join(", "), "solid"]) : []), ...more]) : null);

  // ------------------------------------------------------------------------------------------------- sections

  const main = document.querySelector("main");
  const nav = document.querySelector("nav");

  function section(id, title, text, ...children) {
    const inside = children.flat().filter(Boolean);
    if (!inside.length) return;
    main.append(el("section", { id }, el("h2", {}, title), text ? el("p", {}, text) : null, inside));
    nav.append(el("a", { href: `#${id}` }, title));
  }
  const grid = (list, cls = "") => {
    const found = list.filter(Boolean);
    return found.length ? el("div", { class: `grid ${cls}` }, found.map((chart) => chart.node)) : null;
  };

  /** Return the evaluation of the run's best trained epoch, else of the first one; rl/run/history.py chose the epoch. */
  const best = (run, greedy) => played(run, greedy).find((r) => r.epoch === run.best[greedy ? "greedy" : "sampled"]) ?? played(run, greedy)[0];
  const bounds = (e, to) => `${fixed(100 * e.low, 0)}${to}${fixed(100 * e.high, 0)}`;

  function numbers(run) {
    const done = last(run.epochs);
    const cards = [];
    const card = (name, value, ...small) => cards.push(el("div", {}, el("dt", {}, name), el("dd", {}, value, small.filter(Boolean).map((text) => el("small", {}, text)))));
    for (const greedy of [false, true]) {
      const found = best(run, greedy), before = played(run, greedy).find((r) => r.epoch === 0);
      if (found) card(`best held-out, ${greedy ? "greedy" : "sampled"}`, percent(found.eval.success), `80 % interval ${bounds(found.eval, " to ")}, epoch ${found.epoch}`, before ? `${percent(before.eval.success)} before training` : null);
    }
    if (run.heldOut.length) {
      const lowest = run.heldOut.find((r) => r.epoch === run.best.loss) ?? run.heldOut[0];
      card("lowest held-out loss", number(lowest.eval_loss), `epoch ${lowest.epoch}; ${number(run.heldOut[0].eval_loss)} in the first evaluation`);
    }
    if (!done) return el("dl", { class: "numbers" }, cards);
    if ("accuracy" in done && !run.imitates) card("training success", percent(done.accuracy), `reward ${number(done.reward_mean)}`, `epoch ${done.epoch}`);
    card("epochs", `${done.epoch} of ${run.config.epochs}`, `${whole(done.step)} optimizer steps`, `${whole(sum(run.epochs.map((r) => r.episodes)))} episodes`);
    const seconds = sum(run.phases.flatMap((r) => Object.values(r.phases).map((p) => p.seconds)));
    card("time", duration(seconds), done.epoch < run.config.epochs ? `about ${duration((run.config.epochs - done.epoch) * (sum(run.epochs.slice(-5).map((r) => r.seconds)) / Math.min(5, run.epochs.length)))} left when written` : "in all phases");
    const peaks = run.phases.flatMap((r) => Object.entries(r.phases).map(([name, p]) => [p.peak_bytes, name])).sort((a, b) => b[0] - a[0])[0];
    const work = last(run.phases)?.phases[run.imitates ? "learn" : "collect"];
    if (work) card(`tokens ${run.imitates ? "learned" : "sampled"} per second`, whole(work.tokens_per_second), peaks[0] ? `peak memory ${gib(peaks[0])}, in ${peaks[1]}` : "");
    return el("dl", { class: "numbers" }, cards);
  }

  for (const run of runs) {
    const c = run.config;
    const head = el("div", { class: "run" }, el("h1", {}, many ? el("i", { class: `dot ${colour(run)}` }) : null, run.name),
      el("p", {}, [`${c.algo} on ${c.data || c.env}`, c.model, c.recipe ? `recipe ${c.recipe}` : null, `seed ${c.seed}`, `written ${run.written}`].filter(Boolean).join("  ·  ")));
    main.append(head, numbers(run));
    const found = run.epochs.filter((r) => (r.warnings ?? []).length);
    if (found.length) main.append(el("div", { class: "warning" }, `Warnings: ${unique(found.flatMap((r) => r.warnings)).map((name) => `${name} (${found.filter((r) => r.warnings.includes(name)).length} epochs, first in ${found.find((r) => r.warnings.includes(name)).epoch})`).join(", ")}. docs/glossary.md has each.`));
  }

  const compared = JSON.parse(document.getElementById("compared").textContent);
  if (compared.length) main.append(el("div", { class: "run" }, compared.map((line) => el("p", {}, line))));

  const tone = (run, only) => (many ? colour(run) : only);
  const success = runs.flatMap((run) => [
    { run, cls: tone(run, "unknown"), style: "thin", points: run.imitates ? [] : bands(run, "", "success").length ? bands(run, "", "success") : run.epochs.map((r) => [r.epoch, r.accuracy]) },
    { run, cls: tone(run, "c0"), dots: true, points: played(run, false).map((r) => [r.epoch, r.eval.success, r.eval.low, r.eval.high]) },
    { run, cls: tone(run, "c1"), dots: true, style: "dashed", shift: 5, points: played(run, true).map((r) => [r.epoch, r.eval.success, r.eval.low, r.eval.high]) },
  ]);
  const successChart = lineChart({
    title: "Success", height: 280, format: percent, domain: [0, 1], series: success,
    below: "Training episodes are played before the epoch's update, on tasks that the policy learns from; held-out tasks are never trained on. Training success is the higher one where tasks come again or resemble those that the model has seen before: believe the held-out points.",
    legend: runLegend([
      ...(runs.every((run) => run.imitates) ? [] : [["unknown", "training tasks, sampled", "thin"]]),
      [many ? "unknown" : "c0", "held-out tasks, sampled", "points"], [many ? "unknown" : "c1", "held-out tasks, greedy", "dashed"],
    ]),
  });
  const heldOutChart = lineChart({
    title: "Held-out loss", height: 280, legend: runLegend(),
    series: runs.map((run) => ({ run, cls: colour(run), dots: true, points: run.heldOut.map((r) => [r.epoch, r.eval_loss]) })),
  });
  section("success", "Learning", `${averaged ? "Runs that differ in their seed alone are faint, and their mean is drawn over the epochs that all have. " : ""}Bands and whiskers are 80 % intervals. Point at a chart to read all of them at that epoch.`,
    grid([successChart, heldOutChart], "one"));

  const METRICS = [
    ["entropy", "Entropy", "nats per sampled token; near 0 early: collapsed"],
    ["approx_kl", "KL of an update", "nats per token, old to new policy; below about 0.02"],
    ["reference_kl", "KL to the reference", "nats per token; grows slowly, then levels off"],
    ["clip_fraction", "Clip fraction", "share of tokens; below about 0.2"],
    ["ratio", "Ratio", "mean of new to old probability; 1 within a few per cent"],
    ["sampler_gap", "Sampler gap", "nats; 0 where sampling is exact"],
    ["loss", "Loss", ""], ["policy_loss", "Policy loss", ""], ["value_loss", "Value loss", "half the critic's squared error"],
    ["grad_norm", "Gradient norm", "before it is clipped"], ["lr", "Learning rate", ""], ["kl_coef", "KL coefficient", ""],
    ["perplexity", "Perplexity", "of held-out demonstrations"],
    ["turns_mean", "Turns per episode", ""], ["thought_tokens", "Tokens of thoughts", ""], ["cut_by_length", "Turns cut by length", ""],
    ["invalid_actions", "Actions not understood", "share of turns"],
    ["left_out", "Episodes left out", ""], ["skipped_steps", "Steps skipped", ""],
    ["remote_gap", "Gap to the server", "largest, in nats"], ["remote_weight_mean", "Importance weight", "mean"],
  ];
  const QUIET = new Set(["cut_by_length", "left_out", "skipped_steps", "invalid_actions", "clip_fraction", "kl_coef"]); // charts only if not always 0
  const extra = unique(runs.flatMap((run) => run.epochs.flatMap((r) => Object.keys(r).filter((key) => key.startsWith("env/"))))).sort();
  const ENV = { "env/decomposition": "Decomposition rate", "env/token_efficiency": "Token efficiency" };
  const of = (run, key) => run.metrics.filter((r) => known(r[key])).map((r) => [r.epoch, r[key]]);
  const multiples = [
    lineChart({ title: "Reward", note: `mean score of an epoch's episodes${runs.some((run) => run.imitates) ? "; in sft the expert's" : ""}`, series: runs.map((run) => ({ run, cls: colour(run), points: bands(run, "", "score").length ? bands(run, "", "score") : of(run, "reward_mean") })) }),
    ...METRICS.filter(([key]) => !QUIET.has(key) || runs.some((run) => of(run, key).some(([, v]) => v))).map(([key, title, note]) => lineChart({ title, note, series: runs.map((run) => ({ run, cls: colour(run), points: of(run, key) })) })),
    ...extra.map((key) => lineChart({ title: ENV[key] ?? key[4].toUpperCase() + key.slice(5).replaceAll("_", " "), note: "measured by the environment", series: runs.map((run) => ({ run, cls: colour(run), points: of(run, key) })) })),
  ];
  const playing = runs.filter((run) => !run.imitates);
  const byEnv = unique(playing.flatMap((run) => run.parts.flatMap((part) => Object.keys(part.bands)))).filter(Boolean).sort();
  if (byEnv.length > 1)
    multiples.push(...byEnv.map((env) => lineChart({ title: `Success in ${env}`, note: "training tasks", format: percent, domain: [0, 1], series: playing.map((run) => ({ run, cls: colour(run), points: bands(run, env, "success") })) })));
  const zero = METRICS.filter(([key]) => QUIET.has(key) && runs.some((run) => of(run, key).length) && runs.every((run) => of(run, key).every(([, v]) => v === 0)));
  section("curves", "Curves", `Healthy values are below each title; docs/glossary.md explains every metric.${zero.length ? ` 0 in every epoch: ${zero.map(([, title]) => title.toLowerCase()).join(", ")}.` : ""}`, grid(multiples));

  const OUTCOMES = ["correct", "incorrect", "timeout", "unknown"];
  const suffix = (run) => (many ? `, ${run.name}` : "");
  section("distributions", "Distributions", "A column is an epoch; the stronger the colour, the more of its episodes have that value. The line is the mean.",
    grid(runs.flatMap((run) => [
      heat({ title: `Reward${suffix(run)}`, run, value: (e) => e.score }),
      heat({ title: `Sampled tokens per episode${suffix(run)}`, run, value: (e) => e.sampled, format: whole }),
      heat({ title: `Turns per episode${suffix(run)}`, run, value: (e) => e.turns, format: (x) => number(x) }),
      stack({
        title: `Outcomes${suffix(run)}`, names: OUTCOMES, cls: (name) => name, format: percent, legend: legendOf(OUTCOMES.map((name) => [name, name])),
        parts: run.epochs.filter((r) => r.outcomes).map((r) => ({ epoch: r.epoch, shares: Object.fromEntries(Object.entries(r.outcomes).map(([name, n]) => [name, n / sum(Object.values(r.outcomes))])) })),
      }),
    ]), "wide"));

  const PHASES = ["load", "trial", "collect", "score", "learn", "save", "evaluate"];
  const phaseClass = (name) => `p${Math.max(0, PHASES.indexOf(name))}`;
  section("phases", "Time and memory", "By phase: play or read episodes (collect), values and reference (score), optimizer steps (learn), files (save), held-out tasks (evaluate).",
    grid(runs.flatMap((run) => {
      const names = PHASES.filter((name) => run.phases.some((r) => r.phases[name]));
      const seconds = (name) => sum(run.phases.map((r) => r.phases[name]?.seconds ?? 0));
      const takesTime = (name) => run.phases.some((r) => r.phases[name]?.tokens) && seconds(name) >= 0.01 * sum(names.map(seconds));
      const legend = (shown = names) => legendOf(shown.map((name) => [phaseClass(name), name]));
      const series = (key, only) => only.map((name) => ({ cls: phaseClass(name), points: run.phases.filter((r) => r.phases[name]).map((r) => [r.epoch, r.phases[name][key]]) }));
      return [
        stack({ title: `Seconds per epoch${suffix(run)}`, names, cls: phaseClass, format: (x) => (x < 1 ? x.toFixed(2) : x.toFixed(1)), legend: legend(), parts: run.phases.map((r) => ({ epoch: r.epoch, shares: Object.fromEntries(names.map((name) => [name, r.phases[name]?.seconds ?? 0])) })) }),
        lineChart({ title: `Tokens per second${suffix(run)}`, note: "of phases that take at least 1 % of the time", height: 190, format: whole, series: series("tokens_per_second", names.filter(takesTime)), legend: legend(names.filter(takesTime)) }),
        lineChart({ title: `Peak memory in GiB${suffix(run)}`, height: 190, series: series("peak_bytes", names).map((s) => ({ ...s, points: s.points.filter((p) => p[1]).map(([e, v]) => [e, v / 2 ** 30]) })), legend: legend() }),
      ];
    }), "wide"),
    runs.filter((run) => run.phases.length).map((run) => el("details", {}, el("summary", {}, `Table of phases${suffix(run)}`), el("div", { class: "scroll" }, el("table", {},
      el("tr", {}, ["phase", "seconds", "tokens/s", "peak GiB"].map((name, i) => el("th", { class: i ? "number" : "" }, name))),
      PHASES.filter((name) => run.phases.some((r) => r.phases[name])).map((name) => {
        const parts = run.phases.map((r) => r.phases[name]).filter(Boolean);
        const seconds = sum(parts.map((p) => p.seconds)), tokens = sum(parts.map((p) => p.tokens));
        return el("tr", {}, el("td", {}, name), el("td", { class: "number" }, seconds.toFixed(1)), el("td", { class: "number" }, tokens ? whole(tokens / seconds) : ""), el("td", { class: "number" }, (Math.max(...parts.map((p) => p.peak_bytes)) / 2 ** 30).toFixed(2)));
      }))))));

  /** Draw success with its interval on a scale from 0 to 1. items: [[cls, eval, hollow]] */
  function whiskers(items) {
    const width = 190, height = 9 + 9 * items.length, x = (v) => 6 + v * (width - 12);
    const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": items.map(([, e]) => percent(e.success)).join(", ") });
    for (const v of [0, 0.5, 1]) drawing.append(svg("line", { class: "grid-line", x1: x(v), x2: x(v), y1: 2, y2: height - 2 }));
    items.forEach(([cls, e, hollow], i) => drawing.append(
      svg("line", { class: `whisker ${cls}`, x1: x(e.low), x2: x(e.high), y1: 9 + 9 * i, y2: 9 + 9 * i }),
      svg("circle", { class: `${hollow ? "hollow" : "point"} ${cls}`, cx: x(e.success), cy: 9 + 9 * i, r: 4 })));
    return drawing;
  }

  function evaluationTable(greedy) {
    const rows = [];
    const envs = unique(runs.flatMap((run) => played(run, greedy).flatMap((r) => Object.keys(r.eval.by_env ?? {})))).sort();
    for (const env of envs.length > 1 ? ["", ...envs] : envs)
      for (const run of runs) {
        const found = played(run, greedy).map((r) => [r.epoch, env ? r.eval.by_env?.[env] : r.eval]).filter(([, e]) => e);
        if (!found.length) continue;
        const first = found[0], top = found.find(([epoch]) => epoch === best(run, greedy).epoch) ?? first, end = last(found);
        const cell = ([epoch, e]) => `${percent(e.success)} (${bounds(e, "–")}), epoch ${epoch}`;
        rows.push(el("tr", {}, el("td", {}, many ? el("i", { class: `dot ${colour(run)}` }) : null, env || "all, pooled"),
          el("td", {}, whiskers([[colour(run), first[1], true], ...(end[0] === first[0] ? [] : [[colour(run), end[1]]])])),
          el("td", {}, cell(first)), el("td", {}, cell(top)), el("td", {}, cell(end)), el("td", { class: "number" }, number(end[1].score_mean)), el("td", { class: "number" }, number(end[1].turns_mean)), el("td", { class: "number" }, end[1].distinct_tasks < end[1].episodes ? `${whole(end[1].episodes)} of ${end[1].distinct_tasks}` : whole(end[1].episodes))));
      }
    if (!rows.length) return null;
    return el("div", { class: "scroll" }, el("table", {}, el("tr", {}, [greedy ? "greedy" : "sampled", "0 to 100 %", "first (80 % interval)", "best", "last", "score", "turns", "tasks"].map((name, i) => el("th", { class: i > 4 ? "number" : "" }, name))), rows));
  }
  const tables = [evaluationTable(false), evaluationTable(true)].filter(Boolean);
  section("evaluation", "Evaluation by environment", "Held-out tasks. The hollow point is the first evaluation, the filled one the last.",
    tables.flatMap((table, i) => (i ? [el("p"), table] : [table])));

  // ------------------------------------------------------------------------------------------- episode viewer

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const shorts = (text) => new Uint16Array(bytes(text).buffer);
  const nats = (byte) => 16 * (byte / 255) ** 2; // of rl/report/episodes.py, `squeezed`
  const cache = new Map();

  const WAYS = ["training", "held-out, sampled", "held-out, greedy"];

  /** Return the part of the page that has the text of an episode, or null. */
  function tokensOf({ run, epoch, way, temperature }) {
    const key = `${run.index} ${epoch} ${way}`;
    if (!cache.has(key)) {
      const found = json(`script.${way ? "held-" : ""}tokens[data-run="${run.index}"][data-epoch="${epoch}"]`).find((part) => part.temperature === temperature);
      cache.set(key, found ? { ...found, control: new Set(found.control) } : null);
    }
    return cache.get(key);
  }

  /** Return the index of each token's text. */
  function indicesOf(part, found) {
    const [from, count] = found.like;
    return [...(count ? shorts(part.shown[from].ids).subarray(0, count) : []), ...shorts(found.ids)];
  }
  const textsOf = (part, found) => indicesOf(part, found).map((i) => part.strings[i]);

  /** Return an episode's tokens: {texts, turns, logprobs, entropies, advantages}, the last three by sampled token. */
  function unpacked(episode) {
    const part = tokensOf(episode);
    if (!part || episode.shown < 0) return null;
    const found = part.shown[episode.shown], indices = indicesOf(part, found);
    const advantages = found.adv ? found.adv.flatMap(([n, a]) => new Array(n).fill(a)) : null;
    // Marks around thoughts and calls of tools are control tokens that a reader should see.
    const control = (t) => part.control.has(indices[t]) && !/^<\/?(think|tool)/.test(part.strings[indices[t]]);
    return { texts: indices.map((i) => part.strings[i]), control, turns: found.turns, rendered: found.rendered, logprobs: bytes(found.lp), entropies: found.ent ? bytes(found.ent) : null, advantages, largest: part.largest };
  }

  /** Cut what the agent read into [role, text] of each message. Control tokens alone open and close them. */
  function messages(data, from, to) {
    const found = [];
    let role = "", text = "", opened = false;
    const close = () => {
      if (opened) [role, text] = [text.split("\n", 1)[0], text.slice(text.split("\n", 1)[0].length)];
      if (text.trim()) found.push([role, text.trim()]);
      text = "";
    };
    for (let t = from; t < to; t += 1) {
      if (!data.control(t)) { text += data.texts[t]; continue; }
      close();
      const name = data.texts[t].toLowerCase().replace(/[^a-z_]/g, "");
      opened = name.includes("start"); // the role's name follows
      if (["system", "user", "assistant", "tool"].includes(name)) role = name;
      if (name === "inst") role = data.texts[t].includes("/") ? "assistant" : "user";
    }
    close();
    return found;
  }

  const common = new Map();
  /** Return a name of an episode's task: the last line of its prompt that not all of its environment's prompts have. */
  function taskOf(e) {
    const part = tokensOf(e), key = `${e.run.index} ${e.epoch} ${e.way} ${e.env}`;
    if (!part || e.shown < 0) return `seed ${e.seed}`;
    const lines = ({ shown }) => {
      const found = part.shown[shown], own = indicesOf(part, found).slice(0, found.turns[0]?.[0]);
      return own.map((i) => (part.control.has(i) ? "\n" : part.strings[i])).join("").split("\n").map((text) => text.trim());
    };
    if (!common.has(key)) {
      const some = (e.way ? e.run.held : e.run.episodes).filter((o) => o.epoch === e.epoch && o.way === e.way && o.env === e.env && o.shown >= 0).slice(0, 50).map(lines);
      common.set(key, new Set(some[0].filter((text) => some.every((other) => other.includes(text)))));
    }
    return last(lines(e).filter((text) => text && !common.get(key).has(text))) ?? `seed ${e.seed}`;
  }

  // A page that watch=true loads anew goes on where it was.
  const version = document.documentElement.dataset.version;
  const restored = version ? JSON.parse(sessionStorage.getItem("place")) : null;
  let place = () => null, placed = () => null;
  function viewer(before) {
    const state = { mode: "logprob", current: null, shown: 100, beside: "" };
    const everything = runs.flatMap((run) => [...run.episodes, ...run.held]);
    if (!everything.length) return null;
    const option = (value, text) => el("option", { value }, text);
    const select = (name, options) => [el("select", { "aria-label": name, onchange: refresh }, options.map(([value, text]) => option(value, text))), name];
    const of = (key) => unique(everything.map((e) => e[key]));
    const [byRun, byWay, byEpoch, byEnvironment, byOutcome, order] = [
      select("run", [["", "all"], ...runs.map((run) => [run.index, run.name])]),
      select("tasks", [["", "all"], ...of("way").sort().map((way) => [way, WAYS[way]])]),
      select("epoch", [["", "all"], ...of("epoch").sort((a, b) => b - a).map((e) => [e, e])]),
      select("environment", [["", "all"], ...of("env").sort().map((e) => [e, e])]),
      select("outcome", [["", "all"], ...of("outcome").sort().map((e) => [e, e])]),
      select("order", [["new", "newest first"], ["old", "oldest first"], ["high", "highest reward"], ["low", "lowest reward"], ["long", "most tokens"], ["short", "fewest tokens"]]),
    ];
    const bound = (name) => [el("input", { type: "number", step: "any", "aria-label": name, placeholder: "any", oninput: refresh }), name];
    const [least, most] = [bound("reward from"), bound("reward to")];
    const words = [el("input", { type: "search", "aria-label": "text", placeholder: "any", oninput: refresh }), "text"];
    const texts = new Map(); // of episodes that were searched
    const textOf = (e) => {
      const part = e.shown < 0 || texts.has(e) ? null : tokensOf(e);
      if (part) texts.set(e, textsOf(part, part.shown[e.shown]).join("").toLowerCase());
      return texts.get(e) ?? "";
    };
    const count = el("span", { class: "count", role: "status" });
    const controls = [...(many ? [byRun] : []), ...(of("way").length > 1 ? [byWay] : []), byEpoch, byEnvironment, byOutcome, least, most, words, order];
    const filters = el("div", { class: "filters" }, controls.map(([input, name]) => el("label", {}, name, input)), count);
    const list = el("div", { class: "list", role: "group", "aria-label": "episodes" });
    const transcript = el("div", { class: "transcript" });
    let found = [];

    const ORDERS = {
      new: (a, b) => b.epoch - a.epoch, old: (a, b) => a.epoch - b.epoch, high: (a, b) => b.score - a.score, low: (a, b) => a.score - b.score,
      long: (a, b) => b.sampled - a.sampled, short: (a, b) => a.sampled - b.sampled,
    };
    function refresh() {
      const [run, way, epoch, env, outcome] = [byRun, byWay, byEpoch, byEnvironment, byOutcome].map(([input]) => input.value);
      const low = least[0].value === "" ? -Infinity : Number(least[0].value), high = most[0].value === "" ? Infinity : Number(most[0].value);
      found = everything.filter((e) => (run === "" || e.run.index === Number(run)) && (way === "" || e.way === Number(way)) && (epoch === "" || e.epoch === Number(epoch)) && (env === "" || e.env === env) && (outcome === "" || e.outcome === outcome) && e.score >= low && e.score <= high);
      const searched = words[0].value.toLowerCase();
      if (searched) found = found.filter((e) => textOf(e).includes(searched));
      found.sort(ORDERS[order[0].value]);
      state.shown = 100;
      count.textContent = `${whole(found.length)} of ${whole(everything.length)} episodes`;
      fill();
      list.scrollTop = 0;
      if (!found.includes(state.current)) open(found[0] ?? null);
    }
    const dot = (run) => (many ? el("i", { class: `dot ${colour(run)}` }) : null);
    const outcome = (e) => el("span", { class: `outcome ${OUTCOMES.includes(e.outcome) ? e.outcome : "unknown"}` }, e.outcome);
    function fill() {
      const rows = found.slice(0, state.shown).map((e) => el("button", { type: "button", class: colour(e.run), "aria-current": String(e === state.current), onclick: () => choose(e) },
        el("span", {}, dot(e.run), outcome(e), `  ${e.env}`), el("b", {}, number(e.score)), el("span", { class: "task" }, taskOf(e)),
        el("small", {}, `epoch ${e.epoch}${e.way ? ` · ${WAYS[e.way]}` : ""}`), el("small", {}, `${e.turns} turn${e.turns === 1 ? "" : "s"} · ${whole(e.sampled)} tokens`)));
      if (found.length > state.shown) rows.push(el("button", { type: "button", class: "more", onclick: () => { state.shown += 200; fill(); } }, `${whole(found.length - state.shown)} more`));
      if (!rows.length) rows.push(el("p", { class: "empty" }, "No episode passes these filters."));
      list.replaceChildren(...rows);
    }
    function open(episode) {
      state.current = episode;
      list.querySelectorAll("button[aria-current]").forEach((row, i) => row.setAttribute("aria-current", found[i] === episode));
      show(episode);
    }
    function choose(episode) {
      history.replaceState(null, "", `#${episode.id}`);
      open(episode);
      if (window.matchMedia("(max-width: 47rem)").matches) transcript.scrollIntoView({ block: "start" });
    }

    const MODES = [["logprob", "log-probability"], ["advantage", "advantage"], ["entropy", "entropy"], ["chat", "chat"], ["none", "plain"]];
    const IDLE = {
      logprob: "The stronger the colour, the less likely the sampled token was.", advantage: "Blue: above 0, the update makes the token more likely. Red: below 0, less likely.",
      entropy: "The stronger the colour, the more undecided the policy was.", chat: "Messages without control tokens; what the agent wrote is in boxes.", none: "What the agent wrote is in boxes; the rest it read.",
    };
    const isAble = (data, mode) => (mode === "advantage" ? data.advantages : mode === "entropy" ? data.entropies : data) !== null;

    function show(episode) {
      if (!episode) return transcript.replaceChildren(el("p", { class: "empty" }, "No episode."));
      const data = unpacked(episode), readout = el("p", { class: "readout" });
      const group = episode.way ? [] : everything.filter((e) => !e.way && e.run === episode.run && e.epoch === episode.epoch && e.group === episode.group);
      const twins = episode.way ? everything.filter((e) => e !== episode && e.way === episode.way && e.env === episode.env && e.seed === episode.seed && e.group === episode.group && e.run.tasks === episode.run.tasks) : [];
      const evaluation = (e) => `${e.run.index} ${e.epoch}`;
      const others = twins.map((e) => [evaluation(e), `${many ? `${e.run.name}, ` : ""}epoch ${e.epoch}${e.epoch ? "" : ", before training"}`]);
      const options = [["", "alone"], ...(group.length > 1 ? [["group", `its group of ${group.length}`]] : []), ...others];
      const row = state.beside === "group" && group.length > 1 ? group : [...twins.filter((e) => evaluation(e) === state.beside), episode].sort((a, b) => a.epoch - b.epoch || a.run.index - b.run.index);
      const beside = options.length > 1 ? el("label", { class: "beside" }, "beside ", el("select", { onchange: (event) => { state.beside = event.target.value; show(episode); transcript.querySelector("select").focus(); } }, options.map(([value, text]) => el("option", { value, selected: value === state.beside ? "" : null }, text)))) : null;
      const title = el("h3", {}, dot(episode.run), outcome(episode), ` · ${taskOf(episode)}`);
      const where = el("p", { class: "where" }, `${episode.env}, epoch ${episode.epoch}, ${WAYS[episode.way]}, seed ${episode.seed}, group ${episode.group} · reward ${number(episode.score)} · `, el("a", { href: `#${episode.id}` }, "link"), ...(episode.way ? [] : [" · what its epoch taught: ", el("code", {}, `python -m rl.explain ${episode.run.folder} ${episode.epoch}`)]));
      const mode = data && isAble(data, state.mode) ? state.mode : "logprob";
      const modes = data ? el("div", { class: "modes", role: "radiogroup", "aria-label": "colour of tokens" }, "colour by ", MODES.map(([value, text]) => el("label", {}, el("input", { type: "radio", name: "mode", value, checked: value === mode ? "" : null, disabled: isAble(data, value) ? null : "", onchange: () => { state.mode = value; show(episode); transcript.querySelector(`input[value="${value}"]`).focus(); } }), el("span", { title: isAble(data, value) ? "" : episode.way ? "held-out episodes are not learned from" : value === "entropy" ? "not computed: no gradient came from this episode" : "not saved for this episode" }, text)))) : null;
      readout.textContent = data ? IDLE[mode] : "";
      transcript.replaceChildren(el("header", {}, title, where, beside, modes, readout), el("div", { class: "row" }, row.map((e) => bodyOf(e, mode, readout, row.length > 1))));
    }

    /** Return what an episode read and wrote. headed: it stands beside others. */
    function bodyOf(episode, chosen, readout, headed) {
      const data = unpacked(episode), body = el("div", { class: "body" }, headed ? el("h4", {}, dot(episode.run), outcome(episode), ` · epoch ${episode.epoch} · reward ${number(episode.score)}`) : null);
      if (!data) {
        body.append(el("p", { class: "empty" }, "The text of this episode was left out to keep the page small. ", ...(episode.way ? [] : [el("code", {}, `python -m rl.report ${episode.run.folder} epoch=${episode.epoch}`), " writes a page with all of that epoch's."])));
        return body;
      }
      const mode = isAble(data, chosen) ? chosen : "logprob";
      let at = 0, n = 0;
      const folded = (open, name, text) => el("details", open ? { open: "" } : {}, el("summary", {}, name), text);
      const context = (stop) => {
        if (stop <= at) return;
        if (mode === "chat") return body.append(...messages(data, at, stop).map(([role, text]) => folded(at || text.length < 1200, role || "read", el("p", { class: "text read" }, text))));
        const text = el("p", { class: "text read" }, data.texts.slice(at, stop).join(""));
        body.append(stop - at > 220 ? folded(at, `${at ? (data.rendered ? "history, rendered again, and observation" : "observation") : "prompt"}, ${whole(stop - at)} tokens`, text) : text);
      };
      for (const [start, stop, reward, value, reason, thoughts = 0, forced = 0, from = 0] of data.turns) {
        context(start);
        const spans = [];
        const first = n;
        for (let t = start; t < stop; t += 1) {
          const text = data.texts[t], at = n;
          const span = el("span", text.includes("\n") ? { class: "newline" } : {}, text);
          spans.push(span);
          if (mode === "chat" && data.control(t)) span.className = "hidden";
          if (t >= start + from && t < start + from + forced) { span.title = "forced: not sampled, and not learned"; continue; }
          n += 1;
          const lp = nats(data.logprobs[at]), entropy = data.entropies ? nats(data.entropies[at]) : null, advantage = data.advantages?.[at];
          if (mode === "logprob") span.style.backgroundColor = `rgba(var(--surprise), ${Math.min(0.75, lp / 5).toFixed(3)})`;
          if (mode === "entropy") span.style.backgroundColor = `rgba(var(--doubt), ${Math.min(0.75, entropy / 3).toFixed(3)})`;
          if (mode === "advantage") span.style.backgroundColor = `rgba(var(${advantage > 0 ? "--up" : "--down"}), ${(0.65 * Math.sqrt(Math.min(1, Math.abs(advantage) / (data.largest || 1)))).toFixed(3)})`;
          const tell = () => {
            transcript.querySelectorAll("span.on").forEach((other) => other.classList.remove("on"));
            span.classList.add("on");
            readout.replaceChildren(el("code", {}, text), `  log-probability ${number(-lp)} (${percent(Math.exp(-lp))})`, entropy === null ? "" : `, entropy ${number(entropy)}`, known(advantage) ? `, advantage ${number(advantage)}` : "");
          };
          span.addEventListener("pointerenter", tell);
          span.addEventListener("click", tell);
        }
        const advantage = data.advantages?.[first];
        body.append(el("div", { class: "turn" },
          el("div", {}, el("b", {}, `${mode === "chat" ? "assistant, " : ""}turn ${data.turns.findIndex((turn) => turn[0] === start) + 1}`), `reward ${number(reward)}`, known(value) ? el("span", {}, `value ${number(value)}`) : null, known(advantage) ? el("span", {}, `advantage ${number(advantage)}`) : null, el("span", {}, `${stop - start - forced} tokens`), reason === "stop" ? null : el("span", {}, `cut: ${reason}`)),
          thoughts ? folded(false, `thoughts, ${whole(thoughts)} tokens`, el("p", { class: "text" }, spans.slice(0, thoughts))) : null,
          el("p", { class: "text" }, spans.slice(thoughts))));
        at = stop;
      }
      context(data.texts.length);
      return body;
    }
    /** Open the episode that the address names, among those of its epoch. */
    function follow() {
      const named = everything.find((e) => `#${e.id}` === location.hash);
      if (!named) return null;
      [state.current, byEpoch[0].value, byWay[0].value] = [named, named.epoch, named.way];
      refresh();
      open(named);
      const row = list.querySelector('[aria-current="true"]');
      list.scrollTop = row ? row.offsetTop - list.offsetTop : 0;
      return transcript;
    }
    list.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const rows = [...list.querySelectorAll("button")], next = rows[rows.indexOf(document.activeElement) + step];
      if (step && next) { event.preventDefault(); next.focus(); next.click(); }
    });
    place = () => ({ ...state, current: null, values: controls.map(([input]) => input.value), list: list.scrollTop, focus: controls.findIndex(([input]) => input === document.activeElement) });
    placed = () => {
      if (!before) return follow()?.scrollIntoView();
      follow();
      controls.forEach(([input], i) => { input.value = before.values[i] ?? ""; });
      [state.mode, state.beside] = [before.mode, before.beside];
      refresh();
      [state.shown, list.scrollTop] = [before.shown, 0];
      fill();
      show(state.current);
      list.scrollTop = before.list;
      controls[before.focus]?.[0].focus({ preventScroll: true });
    };
    window.addEventListener("hashchange", () => follow()?.scrollIntoView());
    refresh();
    return [filters, el("div", { class: "viewer" }, list, transcript)];
  }
  section("episodes", "Episodes", "Every episode of every epoch, and of evaluations; those with text can be opened, and searched.", viewer(restored?.viewer));

  // ------------------------------------------------------------------------------------------------- settings

  const flat = (table, prefix = "") => Object.entries(table).flatMap(([key, value]) => (value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value, `${prefix}${key}.`) : [[prefix + key, Array.isArray(value) ? value.join(",") : String(value)]]));
  const settings = runs.map((run) => new Map(flat(run.config)));
  const keys = unique(settings.flatMap((s) => [...s.keys()]));
  const differ = keys.filter((key) => key !== "out" && unique(settings.map((s) => s.get(key))).length > 1);
  const settingTable = (names) => el("div", { class: "scroll" }, el("table", {}, el("tr", {}, el("th", {}, "key"), runs.map((run) => el("th", {}, run.name))), names.map((key) => el("tr", {}, el("td", {}, key), settings.map((s) => el("td", { class: "value" }, s.get(key) ?? ""))))));
  section("settings", "Settings", many ? (differ.length ? "Settings that differ; all of them are below." : "The runs have the same settings.") : "", many && differ.length ? settingTable(differ) : null, el("details", {}, el("summary", {}, `All ${keys.length} settings`), settingTable(keys)));
  main.append(el("footer", {}, "This file needs no network. To write it anew: ", el("code", {}, `python -m rl.report ${runs.map((run) => run.folder).join(" ")}`)));

  // --------------------------------------------------------------------------------------------- theme, layout

  const THEMES = ["auto", "light", "dark"];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let theme = "auto";
  try { theme = THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto"; } catch { /* no storage for files */ }
  const apply = () => {
    document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
    button.textContent = theme;
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % 3];
    try { localStorage.setItem("theme", theme); } catch { /* no storage for files */ }
    apply();
  });
  dark.addEventListener("change", apply);
  apply();

  let drawn = 0;
  const draw = () => { if (main.clientWidth !== drawn) { drawn = main.clientWidth; charts.forEach((chart) => chart.draw()); } };
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 80); });
  draw();
  placed();
  if (restored) window.scrollTo(0, restored.top);
  document.documentElement.dataset.ready = "yes";

  async function renew() {
    let now = null;
    try { now = await (await fetch("version")).text(); } catch { /* the command has ended */ }
    live.textContent = now ? "live" : "ended";
    if (now && now !== version) {
      sessionStorage.setItem("place", JSON.stringify({ top: window.scrollY, viewer: place() }));
      return location.reload();
    }
    setTimeout(renew, 2000);
  }
  const live = el("span", { class: "live", title: "live: this page follows the run; ended: nothing serves it any more" });
  if (version) { document.querySelector(".bar").append(live); renew(); }
})();
