// Shows a search's progress as it comes; without this script the page refreshes itself.
const watch = document.getElementById("watch");
const events = new EventSource(watch.dataset.events);
const bar = document.getElementById("bar");

events.addEventListener("progress", (event) => {
  const { phase, done, total, best_step_seconds: best } = JSON.parse(event.data);
  document.getElementById("status").textContent = "running";
  document.getElementById("phase").textContent = `${phase}: ${done}${total ? ` of ${total}` : ""}`;
  if (total) {
    bar.max = total;
    bar.value = done;
  } else {
    bar.removeAttribute("value");
  }
  if (best) {
    document.getElementById("best").textContent = `Best so far: ${Number(best.toPrecision(3))} s a step`;
  }
});

events.addEventListener("done", () => {
  events.close();
  location.reload();
});
