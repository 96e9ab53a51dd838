"use strict";
// Figures on hover at once, copying, and everything unfolded on paper. The page tells all of it without this script.
const tip = document.querySelector(".tip");
const said = document.querySelector(".said");

for (const title of document.querySelectorAll(".drawing svg title")) {
  title.parentElement.dataset.told = title.textContent;
  title.remove();
}
document.addEventListener("pointermove", (event) => {
  const mark = event.target instanceof Element ? event.target.closest("[data-told]") : null;
  tip.hidden = mark === null;
  if (mark === null) return;
  tip.textContent = mark.dataset.told;
  const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
});

async function copy(source) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(source.textContent);
    return;
  }
  // Pages from a host without TLS have no clipboard of their own.
  getSelection().selectAllChildren(source);
  if (!document.execCommand("copy")) throw new Error("selected; press Ctrl-C");
}

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copies);
    try {
      await copy(source);
      button.textContent = "Copied";
      said.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
      said.textContent = "Selected; press Ctrl-C to copy.";
    }
    setTimeout(() => { button.textContent = "Copy"; said.textContent = ""; }, 2000);
  });
}

let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded) one.open = false;
});
