// The stream of the page, and its questions. A token, where the port asks for one, stays in this tab.
import { byId, hear } from "./parts.js";

const FIRST_MS = 500, LONGEST_MS = 10_000;
export const state = { role: "read", caller: "", brokers: [] };

function headers(more = {}) {
  const token = sessionStorage.getItem("token");
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

export class Refused extends Error {
  constructor(problem) {
    super(problem.message ?? problem.detail ?? problem.title ?? "no answer");
    this.problem = problem;
  }
}

export async function ask(path, method = "GET", body = null, more = {}) {
  const sent = method === "DELETE" ? null : body; // its arguments are the query
  const answer = await fetch(sent === body ? path : `${path}?${new URLSearchParams(body)}`, {
    method,
    headers: headers(body === null ? more : { "Content-Type": "application/json", "Statechannel-Client": "page", ...more }),
    body: sent === null ? undefined : JSON.stringify(sent),
  });
  const text = await answer.text();
  let document_ = {};
  try { document_ = text ? JSON.parse(text) : {}; } catch { document_ = { title: `status ${answer.status}` }; }
  if (answer.status === 401) askForToken();
  if (!answer.ok) throw new Refused(document_);
  return document_;
}

function askForToken() {
  const form = byId("token");
  form.hidden = false;
  byId("token-text").focus();
}

export function follow(take, lost) {
  let wait = FIRST_MS, started = () => {};
  byId("token").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", byId("token-text").value);
    byId("token").hidden = true;
    started();
  });
  const run = async () => {
    for (;;) {
      try {
        Object.assign(state, await ask("v1"));
        const answer = await fetch("v1/page/stream", { headers: headers() });
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        wait = FIRST_MS;
        await read(answer.body.getReader(), take);
        lost("the stream ended");
      } catch (error) {
        lost(error instanceof Refused ? error.message : "no connection");
      }
      await new Promise((done) => { started = done; setTimeout(done, wait); });
      wait = Math.min(LONGEST_MS, wait * 2);
    }
  };
  run();
}

async function read(reader, take) {
  const decoder = new TextDecoder();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    left += decoder.decode(value, { stream: true });
    let end;
    while ((end = left.indexOf("\n\n")) >= 0) {
      const part = left.slice(0, end);
      left = left.slice(end + 2);
      const at = part.indexOf("data: ");
      if (at < 0 || part.startsWith(":")) continue;
      const message = JSON.parse(part.slice(at + 6));
      hear(message.at_ms);
      take(message);
    }
  }
}
