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
    run.episodes = run.parts.flatMap((part) =>
      part.rows.map(([env, outcome, success, score, turns, sampled, length, seed, group, shown]) => ({
        run, epoch: part.episodes, env: part.envs[env], outcome: part.outcomes[outcome], success, score, turns, sampled, length, seed, group, shown,
      })));
  });
  const many = runs.length > 1;
  const colour = (run) => `c${run.index % 4}`;
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
    const node = el("figure", {}, el("figcaption", {}, el("b", {}, title), output), note ? el("small", {}, note) : null, place, legend ?? null, below ? el("small", {}, below) : null);
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
      drawing.append(svg("text", { class: "axis", x: frame.left - 6, y: height - 5, "text-anchor": "end" }, "epoch"));
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

  /** series: [{cls, style, points: [[epoch, value, low, high]], dots}] */
  function lineChart({ title, note, below, series, format = number, domain, height, legend }) {
    series = series.filter((s) => s.points.some((p) => known(p[1])));
    if (!series.length) return null;
    const all = series.flatMap((s) => s.points.flatMap((p) => p.slice(1))).filter(known);
    let [low, high] = domain ?? [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
    const level = low === high ? low : null;
    if (level !== null) [low, high] = [low - Math.abs(low || 1), high + Math.abs(high || 1)];
    else if (!domain) [low, high] = [low >= 0 && low < 0.3 * high ? 0 : low - (high - low) * 0.06, high + (high - low) * 0.06];
    const chart = figure({
      title, note, below, height, legend,
      values: (epoch) => series.map((s) => {
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
            if (piece.length > 1) drawing.append(svg("path", { class: `line ${s.cls} ${s.style ?? ""}`, d: line(piece, frame, y) }));
            if (s.dots || piece.length === 1)
              for (const [e, v, from, to] of piece) {
                const x = frame.x(e) - (s.shift ?? 0) * (e > chart.first ? 1 : -1);
                if (known(from)) drawing.append(svg("line", { class: `whisker ${s.cls}`, x1: x, x2: x, y1: y(from), y2: y(to) }));
                drawing.append(svg("circle", { class: `${s.style === "dashed" ? "hollow" : "point"} ${s.cls}`, cx: x, cy: y(v), r: 3.6 }));
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
  const runLegend = (more = []) => (many || more.length ? legendOf([...(many ? runs.map((run) => [colour(run), run.name, "solid"]) : []), ...more]) : null);

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
      el("p", {}, [`${c.algo} on ${c.env}`, c.model, c.recipe ? `recipe ${c.recipe}` : null, `seed ${c.seed}`, `written ${run.written}`].filter(Boolean).join("  ·  ")));
    main.append(head, numbers(run));
    const found = run.epochs.filter((r) => (r.warnings ?? []).length);
    if (found.length) main.append(el("div", { class: "warning" }, `Warnings: ${unique(found.flatMap((r) => r.warnings)).map((name) => `${name} (${found.filter((r) => r.warnings.includes(name)).length} epochs, first in ${found.find((r) => r.warnings.includes(name)).epoch})`).join(", ")}. docs/glossary.md has each.`));
  }

  const compared = JSON.parse(document.getElementById("compared").textContent);
  if (compared.length) main.append(el("div", { class: "run" }, compared.map((line) => el("p", {}, line))));

  const tone = (run, only) => (many ? colour(run) : only);
  const success = runs.flatMap((run) => [
    { cls: tone(run, "unknown"), style: "thin", points: run.imitates ? [] : bands(run, "", "success").length ? bands(run, "", "success") : run.epochs.map((r) => [r.epoch, r.accuracy]) },
    { cls: tone(run, "c0"), dots: true, points: played(run, false).map((r) => [r.epoch, r.eval.success, r.eval.low, r.eval.high]) },
    { cls: tone(run, "c1"), dots: true, style: "dashed", shift: 5, points: played(run, true).map((r) => [r.epoch, r.eval.success, r.eval.low, r.eval.high]) },
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
    series: runs.map((run) => ({ cls: colour(run), dots: true, points: run.heldOut.map((r) => [r.epoch, r.eval_loss]) })),
  });
  section("success", "Learning", "Bands and whiskers are 80 % intervals. Point at a chart to read all of them at that epoch.",
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
    lineChart({ title: "Reward", note: `mean score of an epoch's episodes${runs.some((run) => run.imitates) ? "; in sft the expert's" : ""}`, series: runs.map((run) => ({ cls: colour(run), points: bands(run, "", "score").length ? bands(run, "", "score") : of(run, "reward_mean") })) }),
    ...METRICS.filter(([key]) => !QUIET.has(key) || runs.some((run) => of(run, key).some(([, v]) => v))).map(([key, title, note]) => lineChart({ title, note, series: runs.map((run) => ({ cls: colour(run), points: of(run, key) })) })),
    ...extra.map((key) => lineChart({ title: ENV[key] ?? key[4].toUpperCase() + key.slice(5).replaceAll("_", " "), note: "measured by the environment", series: runs.map((run) => ({ cls: colour(run), points: of(run, key) })) })),
  ];
  const playing = runs.filter((run) => !run.imitates);
  const byEnv = unique(playing.flatMap((run) => run.parts.flatMap((part) => Object.keys(part.bands)))).filter(Boolean).sort();
  if (byEnv.length > 1)
    multiples.push(...byEnv.map((env) => lineChart({ title: `Success in ${env}`, note: "training tasks", format: percent, domain: [0, 1], series: playing.map((run) => ({ cls: colour(run), points: bands(run, env, "success") })) })));
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

  function tokensOf(run, epoch) {
    const key = `${run.index} ${epoch}`;
    if (!cache.has(key)) {
      const node = document.querySelector(`script.tokens[data-run="${run.index}"][data-epoch="${epoch}"]`);
      cache.set(key, node ? parsed(node) : null);
    }
    return cache.get(key);
  }

  /** Return the text of each token of an episode. */
  function textsOf(part, found) {
    const [from, count] = found.like;
    const head = count ? shorts(part.shown[from].ids).subarray(0, count) : [];
    return [...head, ...shorts(found.ids)].map((i) => part.strings[i]);
  }

  /** Return an episode's tokens: {texts, turns, logprobs, entropies, advantages}, the last three by sampled token. */
  function unpacked(episode) {
    const part = tokensOf(episode.run, episode.epoch);
    if (!part || episode.shown < 0) return null;
    const found = part.shown[episode.shown];
    const advantages = found.adv ? found.adv.flatMap(([n, a]) => new Array(n).fill(a)) : null;
    return { texts: textsOf(part, found), turns: found.turns, rendered: found.rendered, logprobs: bytes(found.lp), entropies: found.ent ? bytes(found.ent) : null, advantages, largest: part.largest };
  }

  function viewer() {
    const state = { mode: "logprob", current: null, shown: 100, group: null };
    const everything = runs.flatMap((run) => run.episodes);
    if (!everything.length) return null;
    const option = (value, text) => el("option", { value }, text);
    const select = (name, options) => [el("select", { "aria-label": name, onchange: refresh }, options.map(([value, text]) => option(value, text))), name];
    const epochsOf = unique(everything.map((e) => e.epoch)).sort((a, b) => b - a);
    const [byRun, byEpoch, byEnvironment, byOutcome, order] = [
      select("run", [["", "all"], ...runs.map((run) => [run.index, run.name])]),
      select("epoch", [["", "all"], ...epochsOf.map((e) => [e, e])]),
      select("environment", [["", "all"], ...unique(everything.map((e) => e.env)).sort().map((e) => [e, e])]),
      select("outcome", [["", "all"], ...unique(everything.map((e) => e.outcome)).sort().map((e) => [e, e])]),
      select("order", [["new", "newest first"], ["old", "oldest first"], ["high", "highest reward"], ["low", "lowest reward"], ["long", "most tokens"], ["short", "fewest tokens"]]),
    ];
    const bound = (name) => [el("input", { type: "number", step: "any", "aria-label": name, placeholder: "any", oninput: refresh }), name];
    const [least, most] = [bound("reward from"), bound("reward to")];
    const words = [el("input", { type: "search", "aria-label": "text", placeholder: "any", oninput: refresh }), "text"];
    const texts = new Map(); // of episodes that were searched
    const textOf = (e) => {
      const part = e.shown < 0 || texts.has(e) ? null : tokensOf(e.run, e.epoch);
      if (part) texts.set(e, textsOf(part, part.shown[e.shown]).join("").toLowerCase());
      return texts.get(e) ?? "";
    };
    const sameGroup = (a, b) => a.run === b.run && a.epoch === b.epoch && a.group === b.group;
    const count = el("span", { class: "count", role: "status" });
    const controls = [...(many ? [byRun] : []), byEpoch, byEnvironment, byOutcome, least, most, words, order];
    const filters = el("div", { class: "filters" }, controls.map(([input, name]) => el("label", {}, name, input)), count);
    const list = el("div", { class: "list", role: "group", "aria-label": "episodes" });
    const transcript = el("div", { class: "transcript" });
    let found = [];

    const ORDERS = {
      new: (a, b) => b.epoch - a.epoch, old: (a, b) => a.epoch - b.epoch, high: (a, b) => b.score - a.score, low: (a, b) => a.score - b.score,
      long: (a, b) => b.sampled - a.sampled, short: (a, b) => a.sampled - b.sampled,
    };
    function refresh() {
      const [run, epoch, env, outcome] = [byRun, byEpoch, byEnvironment, byOutcome].map(([input]) => input.value);
      const low = least[0].value === "" ? -Infinity : Number(least[0].value), high = most[0].value === "" ? Infinity : Number(most[0].value);
      found = everything.filter((e) => (run === "" || e.run.index === Number(run)) && (epoch === "" || e.epoch === Number(epoch)) && (env === "" || e.env === env) && (outcome === "" || e.outcome === outcome) && e.score >= low && e.score <= high);
      const searched = words[0].value.toLowerCase();
      if (searched) found = found.filter((e) => textOf(e).includes(searched));
      if (state.group) found = found.filter((e) => sameGroup(e, state.group));
      found.sort(ORDERS[order[0].value]);
      state.shown = 100;
      count.textContent = `${whole(found.length)} of ${whole(everything.length)} episodes`;
      fill();
      list.scrollTop = 0;
      if (!found.includes(state.current)) open(found[0] ?? null);
    }
    function fill() {
      const rows = found.slice(0, state.shown).map((e) => el("button", { type: "button", class: colour(e.run), "aria-current": e === state.current, onclick: () => open(e, true) },
        el("span", {}, many ? el("i", { class: `dot ${colour(e.run)}` }) : null, el("span", { class: `outcome ${OUTCOMES.includes(e.outcome) ? e.outcome : "unknown"}` }, e.outcome), `  ${e.env}`), el("b", {}, number(e.score)),
        el("small", {}, `epoch ${e.epoch} · seed ${e.seed}`), el("small", {}, `${e.turns} turn${e.turns === 1 ? "" : "s"} · ${whole(e.sampled)} tokens`)));
      if (found.length > state.shown) rows.push(el("button", { type: "button", class: "more", onclick: () => { state.shown += 200; fill(); } }, `${whole(found.length - state.shown)} more`));
      if (!rows.length) rows.push(el("p", { class: "empty" }, "No episode passes these filters."));
      list.replaceChildren(...rows);
    }
    function open(episode, scroll) {
      state.current = episode;
      list.querySelectorAll("button[aria-current]").forEach((row, i) => row.setAttribute("aria-current", found[i] === episode));
      show(episode);
      if (scroll && window.matchMedia("(max-width: 47rem)").matches) transcript.scrollIntoView({ block: "start" });
    }

    const MODES = [["logprob", "log-probability"], ["advantage", "advantage"], ["entropy", "entropy"], ["none", "plain"]];
    function show(episode) {
      if (!episode) return transcript.replaceChildren(el("p", { class: "empty" }, "No episode."));
      const data = unpacked(episode);
      const readout = el("p", { class: "readout" });
      const title = el("h3", {}, many ? el("i", { class: `dot ${colour(episode.run)}` }) : null, el("span", { class: `outcome ${OUTCOMES.includes(episode.outcome) ? episode.outcome : "unknown"}` }, episode.outcome), ` · ${episode.env}, epoch ${episode.epoch}, seed ${episode.seed}, group ${episode.group} · reward ${number(episode.score)}`);
      if (!data) {
        const word = `python -m rl.report ${episode.run.folder} epoch=${episode.epoch}`;
        return transcript.replaceChildren(el("header", {}, title), el("p", { class: "empty" }, "The text of this episode was left out to keep the page small. ", el("code", {}, word), " writes a page with all of that epoch's."));
      }
      const able = { logprob: true, advantage: data.advantages !== null, entropy: data.entropies !== null, none: true };
      const mode = able[state.mode] ? state.mode : "logprob";
      const modes = el("div", { class: "modes", role: "radiogroup", "aria-label": "colour of tokens" }, "colour by ", MODES.map(([value, text]) => el("label", {}, el("input", { type: "radio", name: "mode", value, checked: value === mode ? "" : null, disabled: able[value] ? null : "", onchange: () => { state.mode = value; show(episode); transcript.querySelector(`input[value="${value}"]`).focus(); } }), el("span", { title: able[value] ? "" : value === "entropy" ? "not computed: no gradient came from this episode" : "not saved for this episode" }, text))));
      const body = el("div", { class: "body" });
      let at = 0, n = 0;
      const context = (stop) => {
        if (stop <= at) return;
        const text = el("p", { class: "text read" }, data.texts.slice(at, stop).join(""));
        body.append(stop - at > 220 ? el("details", at ? { open: "" } : {}, el("summary", {}, `${at ? (data.rendered ? "history, rendered again, and observation" : "observation") : "prompt"}, ${whole(stop - at)} tokens`), text) : text);
      };
      const idle = { logprob: "The stronger the colour, the less likely the sampled token was.", advantage: "Blue: above 0, the update makes the token more likely. Red: below 0, less likely.", entropy: "The stronger the colour, the more undecided the policy was.", none: "What the agent wrote is in boxes; the rest it read." }[mode];
      readout.textContent = idle;
      for (const [start, stop, reward, value, reason, thoughts = 0, forced = 0, from = 0] of data.turns) {
        context(start);
        const spans = [];
        const first = n;
        for (let t = start; t < stop; t += 1) {
          const text = data.texts[t], at = n;
          const span = el("span", text.includes("\n") ? { class: "newline" } : {}, text);
          spans.push(span);
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
          el("div", {}, el("b", {}, `turn ${data.turns.findIndex((turn) => turn[0] === start) + 1}`), `reward ${number(reward)}`, known(value) ? el("span", {}, `value ${number(value)}`) : null, known(advantage) ? el("span", {}, `advantage ${number(advantage)}`) : null, el("span", {}, `${stop - start - forced} tokens`), reason === "stop" ? null : el("span", {}, `cut: ${reason}`)),
          thoughts ? el("details", {}, el("summary", {}, `thoughts, ${whole(thoughts)} tokens`), el("p", { class: "text" }, spans.slice(0, thoughts))) : null,
          el("p", { class: "text" }, spans.slice(thoughts))));
        at = stop;
      }
      context(data.texts.length);
      const members = everything.filter((e) => sameGroup(e, episode)).length;
      const group = members > 1 ? el("button", { type: "button", onclick: () => { state.group = state.group ? null : episode; refresh(); show(state.current); } }, state.group ? "all episodes" : `only its group of ${members}`) : null;
      transcript.replaceChildren(el("header", {}, title, group, modes, readout), body);
    }
    list.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const rows = [...list.querySelectorAll("button")], next = rows[rows.indexOf(document.activeElement) + step];
      if (step && next) { event.preventDefault(); next.focus(); next.click(); }
    });
    refresh();
    return [filters, el("div", { class: "viewer" }, list, transcript)];
  }
  section("episodes", "Episodes", "Every episode of every epoch; those with text can be opened, and searched.", viewer());

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
  document.documentElement.dataset.ready = "yes";
})();
