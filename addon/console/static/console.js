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

const isEdited = (element) =>
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
    if (response.ok) htmx.trigger(document.body, "start");
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
    send(form);
  } else if (form.method === "get") {
    // `form-action 'none'`: no form leaves the page by itself
    event.preventDefault();
    const query = new URLSearchParams(new FormData(form));
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

document.addEventListener("htmx:config:request", (event) => {
  Object.assign(event.detail.ctx.request.headers, headers());
});

const isInUse = (element) => {
  const focused = document.activeElement;
  return (element.contains(focused) && focused.matches("input, textarea, select")) || isEdited(element);
};

document.addEventListener("htmx:before:request", (event) => {
  // What nobody sees is fetched when it is seen, and nobody's input is replaced while it is typed.
  const element = event.target;
  if (element.dataset?.refresh === undefined) return;
  if (document.hidden || isInUse(element)) event.preventDefault();
});

document.addEventListener("htmx:before:swap", (event) => {
  // Somebody may have begun to type since the request.
  const element = event.target;
  if (element.dataset?.refresh !== undefined && isInUse(element)) event.preventDefault();
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

let waiting = 0;
document.addEventListener("htmx:after:swap", () => {
  const count = parseInt(find("waiting").textContent, 10) || 0;
  const more = count > waiting;
  waiting = count;
  document.title = document.title.replace(/^\(\d+\) /, "");
  if (count) document.title = `(${count}) ${document.title}`;
  if (more && document.hidden && "Notification" in window && Notification.permission === "granted") {
    const notification = new Notification("toolgraft", {
      body: count === 1 ? "A call waits for your approval." : `${count} calls wait for your approval.`,
      tag: "toolgraft-approvals",
    });
    notification.onclick = () => {
      window.focus();
      location.assign("/console/approvals");
    };
  }
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
