// Draws a page's charts with Chart.js from the JSON beside them, and again when it changes.
const drawn = new Map();
const root = document.documentElement;
const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

// Lines differ by dash and point shape too, not by colour alone.
const ROLES = {
  spent: { colour: "spent", width: 2.5 },
  limit: { colour: "stop", dash: [10, 4], bare: true },
  projected: { colour: "soft", dash: [2, 4], bare: true },
  refused: { colour: "stop", shape: "crossRot", size: 7 },
  reference: { colour: "soft", dash: [4, 3], shape: "rect" },
  threshold: { colour: "warn", dash: [2, 6], width: 1.5, bare: true },
};
const DASHES = [[], [6, 3], [2, 3], [10, 3, 2, 3], [14, 4], [4, 2, 1, 2]];
const SHAPES = ["circle", "rect", "triangle", "rectRot", "star", "crossRot"];

function style(series, place) {
  const known = ROLES[series.role];
  if (known) return { width: 2, dash: [], shape: "circle", size: 3, ...known, colour: colour(known.colour) };
  const turn = place % 6;
  return { width: 2, dash: DASHES[turn], shape: SHAPES[turn], size: 3, colour: colour(`series-${turn + 1}`) };
}

// A lighter colour that hides what is drawn beneath it.
function pale(hex) {
  const parts = (text) => text.match(/^#(..)(..)(..)$/)?.slice(1).map((part) => parseInt(part, 16));
  const own = parts(hex), under = parts(colour("card"));
  return own && under ? `rgb(${own.map((part, at) => Math.round(0.6 * part + 0.4 * under[at])).join(", ")})` : hex;
}

// The library draws stepped lines, but fills them with slopes: areas get their corners as points.
function withCorners(points) {
  return points.flatMap((point, at) => {
    const before = points[at - 1];
    return before && before.x < point.x ? [{ ...before, x: point.x, corner: true }, point] : [point];
  });
}

// Points of areas: each stands on those before it, and covers their part of what is filled down to zero. The library's
// own stacking leaves areas out where steps are close to each other.
function areaPoints(series, heights) {
  return withCorners(series.points.map(([x, own], at) => {
    heights[at] = (heights[at] ?? 0) + own;
    return { x, y: heights[at], own };
  }));
}

function datasetsOf(spec) {
  let place = spec.series.some((series) => series.role === "spent") ? 1 : 0; // the first colour is that of what is spent
  const heights = [];
  return spec.series.map((series, at) => {
    const look = style(series, series.role ? 0 : place++);
    const points = series.kind === "points", area = series.kind === "area";
    return {
      label: series.name,
      data: area ? areaPoints(series, spec.stacked ? heights : []) : series.points.map(([x, y]) => ({ x, y })),
      borderColor: look.colour, backgroundColor: area ? pale(look.colour) : look.colour,
      borderWidth: points ? 2 : area ? 1 : look.width, borderDash: area ? [] : look.dash,
      showLine: !points, stepped: series.kind === "step", fill: area ? "origin" : false,
      pointStyle: look.shape,
      pointRadius: ({ raw }) => raw?.corner ? 0 : points ? look.size : look.bare || series.points.length > 30 ? 0 : look.size,
      pointHoverRadius: look.bare ? 0 : 5, pointHitRadius: 8, order: points ? -1 : area ? 1 + at : 0, spanGaps: false,
    };
  });
}

const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const PACES = [SECOND, 5 * SECOND, 15 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
  DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 182 * DAY, 364 * DAY, 3640 * DAY];
const moment = (at) => new Date(at + localTime.offset(at)).toISOString().replace("T", " ").slice(0, 19);

// Own time ticks, at whole hours and days of the browser's zone, also where its offset changes.
function timeTicks(scale) {
  const pace = PACES.find((each) => (scale.max - scale.min) / each <= Math.max(2, scale.width / 110)) ?? PACES.at(-1);
  const [from, to] = pace >= DAY ? [0, 10] : pace >= MINUTE ? [5, 16] : [11, 19];
  let places = [];
  const ahead = localTime.offset(scale.min);
  for (let local = Math.ceil((scale.min + ahead) / pace) * pace; local - ahead <= scale.max + HOUR; local += pace) {
    const at = local - localTime.offset(local - ahead);
    if (at >= scale.min && at <= scale.max) places.push(at);
  }
  if (places.length < 2) places = [scale.min, scale.max];
  scale.ticks = places.map((at) => ({ value: at, label: moment(at).slice(from, to) }));
}

// Digits in groups of three, as in the text of the pages.
const grouped = (text) => text.replaceAll(",", "\u202f");
const count = (number) => grouped(number.toLocaleString("en"));
const said = (y) => y === null ? "∞" : Math.abs(y) >= 1000 ? count(y) : String(Number(y.toPrecision(5)));

function linearTick(...tick) {
  return grouped(String(Chart.defaults.scales.linear.ticks.callback.apply(this, tick)));
}

const lastOf = (spec) => Math.max(...spec.series.flatMap((each) => each.points.map(([x]) => x)), 0);

function xAxis(spec, ink, line) {
  const times = spec.x.kind === "time";
  return {
    type: "linear",
    ...(spec.x.from === null ? {} : { min: spec.x.from }),
    bounds: times ? "data" : "ticks",
    title: { display: true, text: times ? `Time (${localTime.zone(lastOf(spec))})` : spec.x.label, color: ink },
    ticks: { color: ink, maxRotation: 0, autoSkipPadding: 16, callback: times ? (_, at, all) => all[at].label : linearTick },
    grid: { color: line },
    ...(times ? { afterBuildTicks: timeTicks } : {}),
  };
}

// The legend shows a piece of each line, the shape of points and the colour of areas.
function legendOf(chart) {
  return Chart.defaults.plugins.legend.labels.generateLabels(chart).map((item) => {
    const dataset = chart.data.datasets[item.datasetIndex];
    return { ...item, lineDash: dataset.borderDash, lineWidth: Math.max(2, dataset.borderWidth), pointStyle: !dataset.showLine ? dataset.pointStyle : dataset.fill ? "rect" : "line" };
  });
}

function optionsOf(spec) {
  const ink = colour("soft"), line = colour("line");
  return {
    animation: false, responsive: true, maintainAspectRatio: false, normalized: false,
    interaction: { mode: "places", axis: "x", intersect: false },
    scales: {
      x: xAxis(spec, ink, line),
      y: {
        ...(spec.y.from === null ? {} : { min: spec.y.from }),
        title: { display: true, text: spec.y.label, color: ink }, ticks: { color: ink, callback: linearTick }, grid: { color: line },
      },
    },
    plugins: {
      legend: {
        position: "bottom",
        // Without one of them, an area would cover the part of another.
        onClick: spec.stacked ? null : Chart.defaults.plugins.legend.onClick,
        labels: { color: colour("ink"), usePointStyle: true, pointStyleWidth: 30, boxHeight: 8, generateLabels: legendOf },
      },
      tooltip: {
        callbacks: {
          title: ([item]) => item && (spec.x.kind === "time" ? `${moment(item.parsed.x)} ${localTime.zone(item.parsed.x)}` : `${spec.x.label} ${count(item.parsed.x)}`),
          label: (item) => ` ${item.dataset.label}: ${said(item.raw.own ?? item.parsed.y)}`,
        },
      },
      marks: { marks: spec.marks, ink: colour("ink"), paper: colour("card") },
    },
  };
}

// The points at the nearest place that has any; corners of areas are no points.
Chart.Interaction.modes.places = (chart, event) => {
  const found = chart.getSortedVisibleDatasetMetas().flatMap(({ data, index: datasetIndex }) => data.map((element, index) => (
    { element, datasetIndex, index, away: Math.abs(element.x - event.x) })))
    .filter(({ element, datasetIndex, index }) => !element.skip && !chart.data.datasets[datasetIndex].data[index].corner);
  const nearest = Math.min(...found.map(({ away }) => away));
  return found.filter(({ away }) => away <= nearest + 0.5);
};

const marksPlugin = {
  id: "marks",
  afterDatasetsDraw(chart, _, { marks, ink, paper }) {
    const { ctx, chartArea: area, scales: { x } } = chart;
    ctx.save();
    ctx.font = `11px ${Chart.defaults.font.family}`;
    let row = 0;
    for (const mark of marks ?? []) {
      const at = x.getPixelForValue(mark.x);
      if (!(at >= area.left && at <= area.right)) continue;
      ctx.strokeStyle = ctx.fillStyle = ink;
      ctx.setLineDash([1, 3]);
      ctx.beginPath();
      ctx.moveTo(at, area.top);
      ctx.lineTo(at, area.bottom);
      ctx.stroke();
      const width = ctx.measureText(mark.label).width + 6;
      const left = Math.max(area.left, Math.min(at + 2, area.right - width)), top = area.top + 2 + 15 * (row++ % 4);
      ctx.fillStyle = paper;
      ctx.fillRect(left, top, width, 14);
      ctx.fillStyle = ink;
      ctx.fillText(mark.label, left + 3, top + 11);
    }
    ctx.restore();
  },
};

// As it is shown, on the colour of the card, under the name of the page.
function saveAsPng(figure, { canvas, currentDevicePixelRatio: ratio }) {
  const title = `${document.title.split(" · ")[0]}: ${figure.querySelector("figcaption").textContent}`;
  const copy = document.createElement("canvas"), top = Math.round(32 * ratio), context = copy.getContext("2d");
  Object.assign(copy, { width: canvas.width, height: canvas.height + top });
  context.fillStyle = colour("card");
  context.fillRect(0, 0, copy.width, copy.height);
  Object.assign(context, { fillStyle: colour("ink"), font: `${14 * ratio}px ${Chart.defaults.font.family}` });
  context.fillText(title, 8 * ratio, 21 * ratio, copy.width - 16 * ratio);
  context.drawImage(canvas, 0, top);
  Object.assign(document.createElement("a"), { href: copy.toDataURL(), download: `${title}.png` }).click();
}

function draw(figure, again) {
  const data = figure.querySelector('script[type="application/json"]');
  const frame = figure.querySelector(".canvas"), canvas = figure.querySelector("canvas");
  if (!data || !canvas) return;
  const text = data.textContent, before = drawn.get(figure);
  if (before && before.text === text && !again) return;
  const spec = JSON.parse(text);
  frame.hidden = !spec.series.some((each) => each.points.length && each.role !== "limit" && each.role !== "threshold");
  const save = figure.querySelector("button");
  save.hidden = frame.hidden;
  const made = { datasets: datasetsOf(spec) };
  let chart = before?.chart;
  if (chart) {
    chart.data = made;
    chart.options = optionsOf(spec);
    chart.update("none");
  } else {
    chart = new Chart(canvas, { type: "line", data: made, options: optionsOf(spec), plugins: [marksPlugin] });
    save.addEventListener("click", () => saveAsPng(figure, chart));
  }
  canvas.dataset.drawn = String(spec.series.reduce((sum, each) => sum + each.points.length, 0));
  drawn.set(figure, { chart, text });
}

function drawAll(again = false) {
  for (const figure of document.querySelectorAll("figure.chart")) draw(figure, again);
}

function print(light) {
  root.classList.toggle("light", light);
  drawAll(true);
  for (const { chart } of drawn.values()) chart.resize();
}

Chart.defaults.locale = "en";
Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
drawAll();
document.addEventListener("page:changed", () => drawAll());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
addEventListener("beforeprint", () => print(true));
addEventListener("afterprint", () => print(false));
