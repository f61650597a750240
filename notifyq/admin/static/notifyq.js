// The operator's page without this script works: it only saves reloads and mouse clicks.
// Live updates, relative times, keyboard, selection, theme. Nothing from a message is ever made into HTML here:
// parts of the page are taken from the server's own answers.
"use strict";

(() => {
  const body = document.body;
  const root = body.dataset.root || "./";
  const watch = body.dataset.watch || "";
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector, within = document) => within.querySelector(selector);

  // ---- times

  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];
  const UNITS_OF_WORDS = { d: "d", h: "h", min: "min" };
  const skew = { ms: 0 };

  const ago = (seconds) => {
    const away = Math.abs(seconds);
    if (away < 1) return "just now";
    const unit = UNITS.find(([size]) => away >= size);
    const said = unit ? `${Math.floor(away / unit[0])} ${UNITS_OF_WORDS[unit[1]]}` : `${Math.round(away)} s`;
    return seconds > 0 ? `${said} ago` : `in ${said}`;
  };
  const tell = () => {
    const now = Date.now() + skew.ms;
    for (const time of all("time[data-ago]")) {
      const said = ago((now - Date.parse(time.dateTime)) / 1000);
      if (time.textContent !== said) time.textContent = said;
      if (!time.dataset.local) {
        time.dataset.local = "1";
        time.title = `${new Date(time.dateTime).toLocaleString()} (${time.title})`;
      }
    }
  };

  // ---- live

  const live = one("#live");
  const say = (state, words) => {
    if (!live || live.dataset.state === state) return;
    live.dataset.state = state;
    live.lastElementChild.textContent = words;
  };

  const replace = (there, here) => {
    if (there.innerHTML === here.innerHTML && there.className === here.className) return;
    if (here.dataset.live === "rows") return replaceRows(there, here);
    const id = document.activeElement && here.contains(document.activeElement) ? document.activeElement.id : "";
    const typed = all("input:not([type=hidden])", here).map((input) => [input.id, input.value]);
    here.className = there.className;
    here.innerHTML = there.innerHTML;
    for (const [name, value] of typed) if (name && document.getElementById(name)) document.getElementById(name).value = value;
    if (id && document.getElementById(id)) document.getElementById(id).focus();
  };

  const key = (row) => row.dataset.row;
  const replaceRows = (there, here) => {
    const picked = new Set(all("input[name=row]:checked", here).map((box) => key(box.closest("tr"))));
    const known = new Set(all("tr[data-row]", here).map(key));
    const news = all("tr[data-row]", there).filter((row) => !known.has(key(row)));
    const bar = one("#news");
    if (news.length && known.size && (window.scrollY > 60 || picked.size)) {
      // The reader is in the middle of something: rows in place change, new ones wait behind one line.
      bar.hidden = false;
      for (const row of all("tr[data-row]", here)) {
        const fresh = one(`tr[data-row="${key(row)}"]`, there);
        if (fresh && !picked.has(key(row)) && fresh.innerHTML !== row.innerHTML) row.innerHTML = fresh.innerHTML;
      }
      return;
    }
    bar.hidden = true;
    const at = one("tr.at", here);
    const focused = document.activeElement ? document.activeElement.closest("tr[data-row]") : null;
    const inRow = focused ? (document.activeElement.name === "row" ? "input" : "a") : "";
    here.innerHTML = there.innerHTML;
    for (const row of all("tr[data-row]", here)) {
      if (picked.has(key(row))) one("input[name=row]", row).checked = true;
      if (known.size && !known.has(key(row))) row.classList.add("fresh");
      if (at && key(at) === key(row)) row.classList.add("at");
      if (focused && key(focused) === key(row)) one(inRow, row).focus({ preventScroll: true });
    }
    count();
  };

  let busy = false;
  let again = false;
  const look = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href.split("#")[0].replace(/([?&])did=[^&]*&?/, "$1"), { credentials: "same-origin", headers: { Accept: "text/html" } });
      if (answer.status === 401) { location.reload(); return; }
      if (!answer.ok) throw new Error(String(answer.status));
      const sent = Date.parse(answer.headers.get("Date") || "");
      if (sent && Math.abs(sent - Date.now()) > 5000) skew.ms = sent - Date.now();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const here of all("[data-live]")) {
        const there = page.getElementById(here.id);
        if (there) replace(there, here);
      }
      const badge = one("#failed-badge");
      const newer = page.getElementById("failed-badge");
      if (badge && newer) { badge.className = newer.className; badge.innerHTML = newer.innerHTML; badge.href = newer.href; }
      if (watch !== "email" && watch !== "task") document.title = page.title;
      body.toggleAttribute("data-soon", page.body.hasAttribute("data-soon"));
      tell();
      say("on", "live");
    } catch {
      say("lost", "reconnecting");
    } finally {
      busy = false;
      // One look at a time, and then a breath: a busy queue must not be slowed by who watches it.
      if (again) { again = false; setTimeout(look, 1000); }
    }
  };

  const concerns = (change) => {
    if (watch === "overview") return true;
    if (watch === "emails" || watch === "tasks") return !body.hasAttribute("data-still");
    const ids = watch === "email" ? change.emails : change.tasks;
    return ids.includes(Number(body.dataset.id)) || moving();
  };
  // A claim leaves no trace in the history: a row under way is looked at on every change.
  const moving = () => Boolean(one("#facts .state.busy, #facts .state.wait, #facts .state.doubt"));

  let stream = null;
  const open = () => {
    if (!watch || watch === "preview" || stream || document.hidden || !window.EventSource) return;
    stream = new EventSource(`${root}live`);
    stream.addEventListener("hello", () => { say("on", "live"); look(); });
    stream.addEventListener("change", (event) => {
      const change = JSON.parse(event.data);
      if (change.trouble) say("lost", "database away");
      else if (concerns(change)) look();
    });
    stream.onerror = () => {
      say("lost", "reconnecting");
      if (stream && stream.readyState === EventSource.CLOSED) { stream = null; setTimeout(open, 5000); }
    };
  };
  const close = () => { if (stream) { stream.close(); stream = null; } };
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);

  // ---- selection

  const boxes = () => all("input[name=row]");
  const count = () => {
    const picked = boxes().filter((box) => box.checked).length;
    const everything = one("input[name=all]");
    const said = one("#picked");
    if (!said) return;
    said.textContent = everything && everything.checked ? "All that match" : picked ? `${picked} selected` : "Select rows to act on many";
    const whole = one("#pick-all");
    whole.checked = picked > 0 && picked === boxes().length;
    whole.indeterminate = picked > 0 && picked < boxes().length;
    for (const button of all(".bulk button")) button.disabled = !picked && !(everything && everything.checked);
  };
  document.addEventListener("change", (event) => {
    if (event.target.id === "pick-all") for (const box of boxes()) box.checked = event.target.checked;
    if (event.target.closest("#bulk")) count();
  });
  const news = one("#news button");
  if (news) news.addEventListener("click", () => {
    for (const box of boxes()) box.checked = false;
    window.scrollTo({ top: 0 });
    look();
  });
  document.addEventListener("submit", (event) => {
    const ask = event.target.dataset.ask;
    if (ask && !window.confirm(ask)) event.preventDefault();
  });

  // ---- theme

  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const switchTheme = () => {
    const theme = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    const path = new URL(root, location.href).pathname;
    document.cookie = `notifyq_theme=${theme}; path=${path}; max-age=31536000; SameSite=Strict`;
  };

  // ---- keyboard

  const help = one("#help");
  const rows = () => all("tr[data-row], .needs li");
  const move = (step) => {
    const listed = rows();
    if (!listed.length) return;
    const at = listed.findIndex((row) => row.classList.contains("at"));
    const next = Math.min(Math.max(at + step, 0), listed.length - 1);
    for (const row of listed) row.classList.toggle("at", row === listed[next]);
    one("a", listed[next]).focus({ preventScroll: true });
    listed[next].scrollIntoView({ block: "nearest" });
  };
  const KEYS = {
    j: () => move(1),
    k: () => move(-1),
    o: () => { const link = one(".at a"); if (link) link.click(); },
    x: () => { const box = one("tr.at input[name=row]"); if (box) { box.checked = !box.checked; count(); } },
    r: () => { const button = one("[data-key=r]:not(:disabled)"); if (button) button.click(); },
    u: () => { if (body.dataset.up) location.href = body.dataset.up; },
    t: switchTheme,
    "/": () => { const input = one("[data-first]"); if (input) { input.focus(); input.select(); } },
    "?": () => { if (help && !help.open) help.showModal(); },
  };
  const GO = { o: "", e: "emails", t: "tasks", p: "previews" };
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || (help && help.open)) return;
    if (event.target.closest("input:not([type=checkbox]), select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "g") { going = Date.now(); return; }
    if (Date.now() - going < 1200 && event.key in GO) { going = 0; location.href = root + GO[event.key]; return; }
    if (KEYS[event.key] && one(".tools nav, nav[aria-label=Pages]")) { event.preventDefault(); KEYS[event.key](); }
    else if (event.key === "t") switchTheme();
  });

  // ---- begin

  for (const id of ["#theme", "#keys", ".pick-all"]) if (one(id)) one(id).hidden = false;
  one("#theme").addEventListener("click", switchTheme);
  if (one("#keys")) one("#keys").addEventListener("click", KEYS["?"]);
  count();
  tell();
  setInterval(tell, 5000);
  if (body.hasAttribute("data-soon")) {
    const soon = setInterval(() => { if (body.hasAttribute("data-soon")) look(); else clearInterval(soon); }, 2000);
  }
  // A builder's file may change at any moment while somebody works on it.
  if (watch === "preview") setInterval(() => { if (!document.hidden) look(); }, 1500);
  else open();
})();
