// Saves loading the whole page: links and forms are fetched, and their main part takes the place of
// the one that is there. Without this file the page works as pages do.
"use strict";
document.documentElement.classList.add("scripted");
const said = document.getElementById("said");
const version = document.currentScript.src; // of the server that runs: another one has another
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

function parsed(text) {
  return new DOMParser().parseFromString(text, "text/html");
}

function place(page, keepWords) {
  document.querySelector("main").replaceWith(page.querySelector("main"));
  document.title = page.title;
  say(page.getElementById("said").textContent);
  const field = document.getElementById("query");
  if (document.activeElement !== field || !keepWords) {
    field.value = page.getElementById("query").value;
  }
  window.scrollTo(0, 0);
}

async function show(address, options, {push = true, focus = false} = {}) {
  if (running) running.abort();
  const own = (running = new AbortController());
  document.body.setAttribute("aria-busy", "true");
  say("Searching …");
  try {
    const reply = await fetch(address, {...options, signal: own.signal});
    const text = await reply.text();
    const page = parsed(text);
    if (!page.querySelector("main")) throw new Error(`The server answered with status ${reply.status}.`);
    // Answers to an image have no address of their own: the history keeps them.
    if (push && options.method === "POST") history.pushState({version, text}, "", "/#image");
    else if (push) history.pushState({}, "", address);
    place(page, push);
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
  if (address.origin !== location.origin) return;
  if (link.getAttribute("href").startsWith("#")) {
    const target = document.querySelector(link.getAttribute("href"));
    if (target) event.preventDefault(); // or the history had a page that is none
    target?.focus();
    return;
  }
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
  if (event.target.id !== "image" || !event.target.files[0]) return;
  send(event.target.files[0]);
  event.target.value = ""; // so that choosing the same file again is a change, too
});

function restore() {
  const kept = history.state;
  if (kept?.version !== version) return false;
  running?.abort();
  document.body.removeAttribute("aria-busy");
  place(parsed(kept.text), false);
  return true;
}

restore(); // where the page was loaded again
window.addEventListener("popstate", () => {
  if (!restore()) show(location.pathname + location.search, {}, {push: false});
});

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
