// Figures over time as a line: an SVG with its greatest value and its times.

const WIDTH = 300, HEIGHT = 64, TOP = 6;
const SVG = "http://www.w3.org/2000/svg";

function drawn(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// The coordinates of points { atMs, value }, which may be null, in the order of time: runs without gaps.
export function runsOf(points, width, height) {
  const fromMs = points[0]?.atMs ?? 0, spanMs = Math.max(1, (points.at(-1)?.atMs ?? 0) - fromMs);
  const greatest = Math.max(0, ...points.map(({ value }) => value ?? 0)), runs = [];
  let run = null;
  for (const { atMs, value } of points) {
    if (value === null) {
      run = null;
      continue;
    }
    if (!run) runs.push((run = []));
    const share = greatest ? Math.max(0, value / greatest) : 0;
    run.push([((atMs - fromMs) / spanMs) * width, TOP + (1 - share) * (height - TOP - 1)]);
  }
  return runs;
}

// A chart of points { atMs, value }; `format` writes a value. The caller gives it a name.
export function chart(points, format, name) {
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart", role: "img" });
  const values = points.map(({ value }) => value).filter((value) => value !== null);
  const most = values.length ? format(Math.max(...values)) : "–";
  svg.setAttribute("aria-label", `${name}: ${values.length ? format(values.at(-1)) : "–"} now, at most ${most}`);
  svg.append(drawn("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1, class: "axis" }));
  for (const run of runsOf(points, WIDTH, HEIGHT)) {
    const path = run.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" L");
    const [first] = run[0], [last] = run.at(-1);
    svg.append(drawn("path", { d: `M${first.toFixed(1)},${HEIGHT} L${path} L${last.toFixed(1)},${HEIGHT} Z`, class: "area" }));
    svg.append(drawn("path", { d: run.length > 1 ? `M${path}` : `M${path} h0.1`, class: "line", "vector-effect": "non-scaling-stroke" }));
  }
  return svg;
}
