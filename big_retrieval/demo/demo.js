// Saves loading the whole page: links and forms are fetched, and their main part takes the place of
// the one that is there. Without this file the page works as pages do.
"use strict";
document.documentElement.classList.add("scripted");
const said = document.getElementById("said");
let running = null;

function say(text) {
  said.textContent = text;
}

function problem(text) {
  const main = document.querySelector("main");
  const line = document.createElement("p");
  line.className = "problem";
  line.setAttribute("role", "alert");
  line.textContent = text;
  main.prepend(line);
  window.scrollTo(0, 0);
}

async function show(address, options, {push = true, focus = false} = {}) {
  if (running) running.abort();
  const own = (running = new AbortController());
  document.body.setAttribute("aria-busy", "true");
  say("Searching …");
  try {
    const reply = await fetch(address, {...options, signal: own.signal});
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    const main = page.querySelector("main");
    if (!main) throw new Error(`The server answered with status ${reply.status}.`);
    if (push) history.pushState({}, "", options.method === "POST" ? "/#image" : address);
    document.querySelector("main").replaceWith(main);
    document.title = page.title;
    say(page.getElementById("said").textContent);
    const words = page.getElementById("query").value;
    const field = document.getElementById("query");
    if (document.activeElement !== field || !push) field.value = words;
    window.scrollTo(0, 0);
    if (focus) document.getElementById("found")?.focus({preventScroll: true});
  } catch (error) {
    if (error.name === "AbortError") return;
    say("");
    problem(`No answer: ${error.message || "the server cannot be reached"}`);
  } finally {
    if (running === own) {
      running = null;
      document.body.removeAttribute("aria-busy");
    }
  }
}

function send(file) {
  const input = document.getElementById("image");
  const most = Number(input.dataset.most);
  if (file.size > most - 4096) {
    problem(`This image has ${(file.size / 2 ** 20).toFixed(1)} MiB; ${most / 2 ** 20} MiB are the most.`);
    return;
  }
  const body = new FormData();
  body.append("image", file);
  show("/image", {method: "POST", body}, {focus: true});
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey ||
      event.shiftKey || event.altKey) return;
  const address = new URL(link.href);
  if (address.origin !== location.origin || link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  show(address.pathname + address.search, {}, {focus: true});
});

document.addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.target.enctype === "multipart/form-data") {
    const file = document.getElementById("image").files[0];
    if (file) send(file);
    return;
  }
  const words = new URLSearchParams(new FormData(event.target));
  show(`/?${words}`, {});
});

document.addEventListener("change", (event) => {
  if (event.target.id === "image" && event.target.files[0]) send(event.target.files[0]);
});

window.addEventListener("popstate", () => show(location.pathname + location.search, {}, {push: false}));

// An image can also be dropped on the page, or pasted.
const takes = document.getElementById("image");
if (takes) {
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    const file = event.dataTransfer.files[0];
    if (file) send(file);
  });
  document.addEventListener("paste", (event) => {
    const file = event.clipboardData.files[0];
    if (file) send(file);
  });
}
