// Results of a search and a live tail: server-sent events whose data are rendered rows.

const place = document.getElementById("stream");
const rows = place.querySelector("[data-rows]");
const summary = place.querySelector("[data-summary]");
const bar = place.querySelector("progress");
const stop = place.querySelector("[data-stop]");
const problems = place.querySelector("[data-problems]");
const isLive = place.dataset.liveTail === "1";
const ROWS_MAX = 500;
let source = null;
let latest = null;

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${bytes.toFixed(unit && bytes < 100 ? 1 : 0)} ${units[unit]}`;
}

function report(progress, state) {
  latest = progress;
  const speed = progress.seconds > 0.05 ? `, ${size(progress.size_bytes / progress.seconds)}/s` : "";
  if (isLive) {
    const skipped = progress.skipped ? `, ${count(progress.skipped, "match").replace("matchs", "matches")} not shown` : "";
    summary.textContent = `${state}: ${count(progress.found, "record")} of ${count(progress.done, "new one")}${skipped}`;
    return;
  }
  const share = progress.total ? progress.done / progress.total : 1;
  bar.value = share;
  const part = state === "Searching" ? ` (${Math.floor(share * 100)} %)` : "";
  const all = progress.done >= progress.total ? `all ${count(progress.total, "offset")}` : `${progress.done.toLocaleString("en")} of ${count(progress.total, "offset")}`;
  summary.textContent = `${state}${part}: ${count(progress.found, "record")} in ${all}, ${size(progress.size_bytes)} in ${progress.seconds.toFixed(1)} s${speed}`;
}

function finish(state) {
  source?.close();
  source = null;
  stop.hidden = true;
  bar.hidden = true;
  place.removeAttribute("aria-busy");
  if (latest) report(latest, state);
  else summary.textContent = `${state}.`;
}

function start() {
  if (!place.dataset.stream) return;
  source = new EventSource(place.dataset.stream);
  place.setAttribute("aria-busy", "true");
  stop.hidden = false;
  bar.hidden = isLive;
  if (isLive) summary.textContent = "Waiting for new records…";
  source.addEventListener("rows", (event) => {
    rows.insertAdjacentHTML(isLive ? "afterbegin" : "beforeend", event.data);
    while (isLive && rows.children.length > ROWS_MAX) rows.lastElementChild.remove();
  });
  source.addEventListener("progress", (event) => report(JSON.parse(event.data), isLive ? "Live" : "Searching"));
  source.addEventListener("end", (event) => {
    latest = JSON.parse(event.data);
    finish("Done");
  });
  source.addEventListener("problem", (event) => {
    problems.innerHTML = event.data;
    finish("Stopped");
  });
  source.onerror = () => {
    // Without this the browser would begin the search again.
    if (source) {
      problems.textContent = "";
      const line = document.createElement("p");
      line.className = "flash bad";
      line.textContent = "The connection to the console was lost. Reload the page to search again.";
      problems.append(line);
      finish("Stopped");
    }
  };
}

stop.addEventListener("click", () => finish("Stopped"));
addEventListener("pagehide", () => source?.close());
// From, to and the like belong to a range.
for (const name of ["from", "to"]) {
  document.querySelector(`input[name=${name}]`).addEventListener("input", () => {
    document.querySelector("input[name=show][value=range]").checked = true;
  });
}
start();
