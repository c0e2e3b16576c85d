// Draws every figure in the colours of the page, keeps their time axes together, copies commands, and narrows a list of
// runs down to those behind a number.
(() => {
  const plots = [...document.querySelectorAll(".plot")];
  const figureOf = (plot) => JSON.parse(plot.nextElementSibling.textContent);
  const alone = (plot) => figureOf(plot).layout.meta?.alone === true;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 640;
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: false,
  };

  function themed(layout) {
    const text = colour("--dim"), grid = colour("--grid");
    const themedLayout = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: text, size: 12, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--text") } },
      margin: { ...layout.margin, l: narrow() ? Math.min(94, layout.margin.l) : layout.margin.l },
    };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        themedLayout[key] = { ...layout[key], gridcolor: grid, linecolor: grid, zerolinecolor: grid };
      }
    }
    return themedLayout;
  }

  function draw(plot) {
    const figure = figureOf(plot);
    if (plot.range) figure.layout.xaxis.range = plot.range;
    return Plotly.react(plot, figure.data, themed(figure.layout), config);
  }

  function open(address) {
    // A page of this server, or a file beside this one: never an address with a scheme of its own.
    if (typeof address !== "string" || !address) return;
    const target = new URL(address, location.href);
    if (target.protocol === location.protocol && target.host === location.host) location.href = target.href;
  }

  let following = false;
  function follow(source, change) {
    const reset = change["xaxis.autorange"] === true;
    const range = change["xaxis.range"] || (change["xaxis.range[0]"] !== undefined
      ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null);
    if (following || (!range && !reset)) return;
    following = true;
    const whole = figureOf(source).layout.xaxis.range;
    const together = alone(source) ? [source] : plots.filter((plot) => !alone(plot));
    Promise.all(together.map((plot) => {
      plot.range = reset ? null : range;
      return Plotly.relayout(plot, { "xaxis.range": reset ? whole : range, "xaxis.autorange": false });
    })).finally(() => { following = false; });
  }

  Promise.all(plots.map((plot) =>
    draw(plot).then(() => {
      plot.on("plotly_relayout", (change) => follow(plot, change));
      plot.on("plotly_click", (click) => open(click.points[0].customdata));
    }),
  )).then(() => { document.documentElement.dataset.drawn = "true"; });
  const redraw = () => plots.forEach(draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.matchMedia("(max-width: 640px)").addEventListener("change", redraw);

  const list = document.querySelector("#runs table.runs tbody");
  const inOrder = list ? [...list.rows] : [];
  function narrowDown() {
    const query = new URLSearchParams(location.hash.startsWith("#runs?") ? location.hash.slice(6) : "");
    const value = (row) => parseFloat(row.querySelector(`[data-by="${CSS.escape(query.get("by"))}"]`)?.dataset.value);
    const fits = (row) =>
      (!query.has("cell") || row.dataset.cell === query.get("cell")) &&
      (!query.has("valid") || row.dataset.valid === query.get("valid")) &&
      (!query.has("cause") || row.dataset.cause.split("\n").includes(query.get("cause"))) &&
      (!query.has("by") || !Number.isNaN(value(row)));
    const rows = query.has("by")
      ? [...inOrder].sort((a, b) => (value(a) - value(b) || 0) * (query.get("first") === "low" ? 1 : -1))
      : inOrder;
    list.append(...rows);
    for (const row of rows) row.hidden = !fits(row);
    const note = document.querySelector("#runs .narrowed");
    note.textContent = "";
    if (![...query].length) return;
    const words = [query.get("cell"), query.get("cause"), query.get("valid") === "no" ? "not valid" : null];
    const shown = rows.filter((row) => !row.hidden).length;
    const all = Object.assign(document.createElement("a"), { href: "#runs", textContent: "Show all" });
    note.append(`${shown} of ${rows.length} runs: ${words.filter(Boolean).join(", ")}. `, all);
    const section = document.getElementById("runs");
    section.focus({ preventScroll: true });
    section.scrollIntoView();
  }
  if (list) {
    window.addEventListener("hashchange", narrowDown);
    narrowDown();
  }

  for (const button of document.querySelectorAll("button[data-copies]")) {
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copies).textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(document.getElementById(button.dataset.copies));
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
})();
