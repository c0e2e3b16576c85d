// Draws every figure in the colours of the page, keeps their time axes together, and copies commands.
(() => {
  const plots = [...document.querySelectorAll(".plot")];
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
      margin: { ...layout.margin, l: narrow() ? 94 : layout.margin.l },
    };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        themedLayout[key] = { ...layout[key], gridcolor: grid, linecolor: grid, zerolinecolor: grid };
      }
    }
    return themedLayout;
  }

  function draw(plot) {
    const figure = JSON.parse(plot.nextElementSibling.textContent);
    if (plot.range) figure.layout.xaxis.range = plot.range;
    return Plotly.react(plot, figure.data, themed(figure.layout), config);
  }

  let following = false;
  function follow(source, change) {
    const reset = change["xaxis.autorange"] === true;
    const range = change["xaxis.range"] || (change["xaxis.range[0]"] !== undefined
      ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null);
    if (following || (!range && !reset)) return;
    following = true;
    const whole = JSON.parse(source.nextElementSibling.textContent).layout.xaxis.range;
    Promise.all(plots.map((plot) => {
      plot.range = reset ? null : range;
      return Plotly.relayout(plot, { "xaxis.range": reset ? whole : range, "xaxis.autorange": false });
    })).finally(() => { following = false; });
  }

  Promise.all(plots.map((plot) =>
    draw(plot).then(() => plot.on("plotly_relayout", (change) => follow(plot, change))),
  )).then(() => { document.documentElement.dataset.drawn = "true"; });
  const redraw = () => plots.forEach(draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.matchMedia("(max-width: 640px)").addEventListener("change", redraw);

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
