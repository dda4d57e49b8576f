// Signs the page in, sends its forms as JSON, and shows what was refused. All text goes through textContent.
"use strict";

const KEY = "toolgraft-page";
const find = (id) => document.getElementById(id);
const headers = () => {
  const key = localStorage.getItem(KEY);
  return key ? { "X-Graft-Page": key } : {};
};

const show = (id, text) => {
  find(id).textContent = text;
  find(id).hidden = !text;
};

const detailOf = async (response) => {
  try {
    return (await response.clone().json()).detail ?? response.statusText;
  } catch {
    return response.statusText || `status ${response.status}`;
  }
};

// An item that was added counts, empty as it may be.
const isEdited = (element) =>
  element.querySelector("[data-added]") !== null ||
  [...element.querySelectorAll("select option")].some((option) => option.selected && option.value && !option.defaultSelected) ||
  [...element.querySelectorAll("input, textarea")].some((field) => field.value !== field.defaultValue);

const askForToken = () => {
  find("sign-in").hidden = false;
  find("main").hidden = true;
  for (const id of ["main", "waiting"]) find(id).replaceChildren();
  find("sign-out").hidden = true;
  find("token").focus();
};

const start = () => {
  find("sign-in").hidden = true;
  find("main").hidden = false;
  find("sign-out").hidden = !localStorage.getItem(KEY);
  htmx.trigger(document.body, "start");
};

const signIn = async (path, options) => {
  const response = await fetch(path, { method: "POST", ...options });
  if (!response.ok) {
    show("problem", await detailOf(response));
    return false;
  }
  localStorage.setItem(KEY, (await response.json()).page_key);
  show("problem", "");
  return true;
};

const signInByLink = async (code) => {
  history.replaceState(null, "", location.pathname + location.search);
  await signIn("/console/session/link", {
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ code }),
  });
};

// JSON is sent as it was typed: a number that this page has parsed would be rounded.
const bodyOf = (form) => {
  if ("fields" in form.dataset) {
    const entered = [...form.querySelectorAll("[name]")].map((field) => [field.name, field.value]);
    return JSON.stringify({ fields: Object.fromEntries(entered) });
  }
  const members = [];
  for (const field of form.querySelectorAll("input[name], textarea, select[name]")) {
    const isJson = "json" in field.dataset;
    if (isJson) JSON.parse(field.value);
    const value = isJson ? field.value : JSON.stringify(field.value);
    if ("body" in field.dataset) return value;
    if (field.value !== "") members.push(`${JSON.stringify(field.name)}: ${value}`);
  }
  return `{${members.join(", ")}}`;
};

// Says beside each field what is wrong with it.
const markFields = async (form, response) => {
  if (!("fields" in form.dataset)) return;
  let problems = {};
  try {
    problems = (await response.clone().json()).fields ?? {};
  } catch {
    // the detail says it all
  }
  let first = null;
  for (const field of form.querySelectorAll("[name]")) {
    const words = Object.hasOwn(problems, field.name) ? problems[field.name] : "";
    if (field.type === "hidden") continue;
    field.setAttribute("aria-invalid", words ? "true" : "false");
    show(`${field.id}-problem`, words);
    first ??= words ? field : null;
  }
  first?.focus();
};

// An item of a list: a copy of its template, whose star is replaced by the item's place.
const placed = (node, star, place) => {
  for (const element of node.querySelectorAll("*")) {
    for (const name of ["id", "for", "name", "aria-describedby"]) {
      const value = element.getAttribute(name);
      if (value !== null) element.setAttribute(name, value.replaceAll(`/${star}`, `/${place}`));
    }
    if (element instanceof HTMLTemplateElement) placed(element.content, star, place);
  }
};

const addItem = (list) => {
  const template = list.querySelector(":scope > template");
  const place = Number(list.dataset.next ?? 0);
  list.dataset.next = place + 1;
  const item = document.importNode(template.content, true);
  placed(item, template.dataset.star, place);
  item.firstElementChild.dataset.added = "";
  list.insertBefore(item, list.querySelector(":scope > [data-add]"));
  list.querySelector(":scope > .item:last-of-type")?.querySelector("input, textarea, select, [data-add]")?.focus();
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-add], [data-remove]");
  if (!button) return;
  const list = button.closest("[data-list]");
  if ("add" in button.dataset) {
    addItem(list);
  } else {
    button.closest(".item").remove();
    list.querySelector(":scope > [data-add]").focus();
  }
});

const send = async (form) => {
  let body;
  try {
    body = bodyOf(form);
  } catch (error) {
    show("problem", `This is not JSON: ${error.message}`);
    return;
  }
  const buttons = form.querySelectorAll("button");
  buttons.forEach((button) => (button.disabled = true));
  try {
    const version = form.dataset.ifMatch;
    const response = await fetch(form.dataset.to, {
      method: form.dataset.send,
      headers: {
        ...headers(),
        "Content-Type": "application/json",
        ...(version ? { "If-Match": version } : {}),
      },
      body,
    });
    show("problem", response.ok ? "" : await detailOf(response));
    await markFields(form, response);
    if (response.ok && form.dataset.then === "call") {
      location.assign(`/console/call?call_id=${encodeURIComponent((await response.json()).call_id)}`);
    } else if (response.ok) {
      htmx.trigger(document.body, "start");
    }
  } catch {
    show("problem", "The proxy cannot be reached. Nothing is known about this change; reload the page.");
  } finally {
    buttons.forEach((button) => (button.disabled = false));
  }
};

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.id === "token-form") {
    event.preventDefault();
    const token = find("token").value.trim();
    find("token").value = "";
    signIn("/console/session", { headers: { Authorization: `Bearer ${token}` } }).then((ok) => ok && location.reload());
  } else if (form.dataset.send) {
    event.preventDefault();
    if (performance.now() < surprisedUntil) {
      show("problem", "The list has just moved under the pointer, and nothing was sent. Look again, and press again.");
      return;
    }
    send(form);
  } else if (form.method === "get") {
    // `form-action 'none'`: no form leaves the page by itself
    event.preventDefault();
    const query = new URLSearchParams(new FormData(form));
    for (const { name, value } of form.querySelectorAll("[type=datetime-local]"))
      if (value) query.set(name, new Date(value).toISOString());
    for (const [name, value] of [...query]) if (!value) query.delete(name);
    location.assign(`${form.getAttribute("action")}?${query}`);
  }
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(find(button.dataset.copy).textContent);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 2000);
});

const showMoments = () => {
  // A time is entered and shown in the browser's zone.
  for (const field of document.querySelectorAll("[data-moment]")) {
    const moment = new Date(field.dataset.moment);
    moment.setMinutes(moment.getMinutes() - moment.getTimezoneOffset());
    field.defaultValue = moment.toISOString().slice(0, 19);
  }
};
document.addEventListener("htmx:after:swap", showMoments);

document.addEventListener("htmx:config:request", (event) => {
  Object.assign(event.detail.ctx.request.headers, headers());
});

// Somebody types, or has opened a form.
const isInUse = (element) => {
  const focused = document.activeElement;
  return (
    (element.contains(focused) && focused.matches("input, textarea, select")) ||
    element.querySelector("details.edit[open]") !== null ||
    isEdited(element)
  );
};

let isBehind = false; // a refresh was left out
const catchUp = () => {
  const element = document.querySelector("[data-refresh]");
  if (!isBehind || !element || document.hidden || isInUse(element)) return;
  isBehind = false;
  htmx.trigger(find("changes"), find("main").dataset.page);
};
for (const event of ["focusout", "toggle"]) document.addEventListener(event, () => setTimeout(catchUp), true);

// A list that grows or shrinks moves its buttons: a press must not hit another call's.
const SURPRISE = 700;
let pointer = null;
let before = null;
let surprisedUntil = 0;
document.addEventListener("pointermove", ({ clientX, clientY }) => (pointer = [clientX, clientY]), { passive: true });
const formUnderPointer = () => pointer && document.elementFromPoint(...pointer)?.closest("form[data-send]")?.dataset.to;
const titleOf = (details) =>
  `${details.closest("article")?.querySelector("h2")?.textContent} ${details.querySelector("summary").textContent}`;
const keyOf = (element) => element.id || `${element.closest("form[data-send]")?.dataset.to} ${element.textContent}`;

document.addEventListener("htmx:before:request", (event) => {
  // What nobody sees is fetched when it is seen, and nobody's input is replaced while it is typed.
  const element = event.target;
  if (element.dataset?.refresh === undefined) return;
  if (document.hidden || isInUse(element)) {
    isBehind = true;
    event.preventDefault();
  }
});

document.addEventListener("htmx:before:request", (event) => {
  // The control API takes JSON alone.
  const field = event.target;
  if (field.dataset?.check === undefined) return;
  const { request } = event.detail.ctx;
  request.headers["Content-Type"] = "application/json";
  request.body = JSON.stringify({ text: field.value, version: field.form.dataset.ifMatch });
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-line]");
  if (!button) return;
  const field = find(button.dataset.in);
  const before = field.value.split("\n").slice(0, button.dataset.line - 1);
  const start = before.join("\n").length + (before.length ? 1 : 0);
  const end = field.value.indexOf("\n", start);
  field.focus();
  field.setSelectionRange(start, end < 0 ? field.value.length : end);
});

document.addEventListener("htmx:before:swap", (event) => {
  // Somebody may have begun to type since the request.
  const element = event.target;
  if (element.dataset?.refresh === undefined) return;
  if (isInUse(element)) {
    isBehind = true;
    event.preventDefault();
    return;
  }
  const focused = document.activeElement;
  const opened = [...element.querySelectorAll("details[open]")].map(titleOf);
  before = { element, form: formUnderPointer(), focus: element.contains(focused) ? keyOf(focused) : null, opened };
});

document.addEventListener("htmx:after:swap", () => {
  if (!before || before.element.isConnected) return; // another part of the page
  const { form, focus, opened } = before;
  before = null;
  for (const one of find("main").querySelectorAll("details")) if (opened.includes(titleOf(one))) one.open = true;
  const now = formUnderPointer();
  if (now && now !== form) surprisedUntil = performance.now() + SURPRISE;
  if (!focus) return;
  const same = [...find("main").querySelectorAll("a, button, summary, [tabindex]")].find((one) => keyOf(one) === focus);
  same?.focus({ preventScroll: true });
});

document.addEventListener("htmx:after:request", async (event) => {
  const response = event.detail.ctx.response?.raw;
  if (!response || response.ok) return;
  if (response.status === 401) {
    localStorage.removeItem(KEY);
    askForToken();
  } else {
    show("problem", await detailOf(response));
  }
});

document.addEventListener("htmx:sse:after:connection", () => show("connection", ""));
document.addEventListener("htmx:sse:error", (event) => {
  if (event.detail.status !== 401) show("connection", "The proxy cannot be reached. Connecting …");
  else if (isEdited(find("main")))
    show("connection", "This page's session has ended. Copy what you have typed, and reload the page.");
  else if (!find("main").hidden) location.reload(); // htmx would go on with the key of the old session
});
document.addEventListener("htmx:sse:close", () => show("connection", ""));

// When the newest call that waits was made; null: not known yet.
let newest = null;

const notifyOf = (count) => {
  const notification = new Notification("toolgraft", {
    body: count === 1 ? "A call waits for your approval." : `${count} calls wait for your approval.`,
    tag: "toolgraft-approvals",
    renotify: true, // the tag alone would let a second arrival replace the first in silence
  });
  notification.onclick = () => {
    window.focus();
    notification.close();
    location.assign("/console/approvals");
  };
};

document.addEventListener("htmx:after:swap", () => {
  const found = find("waiting").querySelector("[data-newest]");
  if (!found) return;
  const count = parseInt(find("waiting").textContent, 10) || 0;
  document.title = document.title.replace(/^\(\d+\) /, "");
  if (count) document.title = `(${count}) ${document.title}`;
  const before = newest;
  newest = Math.max(newest ?? 0, Number(found.dataset.newest));
  const mayNotify = "Notification" in window && Notification.permission === "granted";
  if (before !== null && newest > before && mayNotify && !document.hasFocus()) notifyOf(count);
});

window.addEventListener("storage", (event) => {
  // Another tab has signed out or in.
  if (event.key === KEY && (!event.newValue || !isEdited(find("main")))) location.reload();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) htmx.trigger(find("changes"), find("main").dataset.page);
});

document.addEventListener("DOMContentLoaded", async () => {
  const notify = find("notify");
  notify.hidden = !("Notification" in window) || Notification.permission !== "default";
  notify.addEventListener("click", async () => {
    await Notification.requestPermission();
    notify.hidden = true;
  });
  find("sign-out").addEventListener("click", async () => {
    try {
      await fetch("/console/session", { method: "DELETE", headers: headers() });
    } catch {
      // the proxy has stopped; the page forgets its key all the same
    }
    localStorage.removeItem(KEY);
    location.assign("/console");
  });
  if (location.hash.length > 20) await signInByLink(location.hash.slice(1));
  start();
});
