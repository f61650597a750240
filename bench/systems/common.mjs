// What every Node system shares, as common.py is for Python: the email, the POST, the command line.
import http from "node:http";
import { parseArgs } from "node:util";

const HTML = "<html><body>" + "<p>Your order is on its way to you.</p>".repeat(38) + "</body></html>";
const TEXT = "Your order is on its way to you. ".repeat(12);

export const { values: given, positionals: [verb] } = parseArgs({
  allowPositionals: true,
  options: {
    dsn: { type: "string" },
    url: { type: "string", default: "" },
    slots: { type: "string", default: "100" },
    count: { type: "string", default: "0" },
    gap: { type: "string", default: "0" },
    prefix: { type: "string", default: "k" },
    variant: { type: "string", default: "" },
  },
});

export const slots = Number(given.slots);
export const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
export const keys = () => Array.from({ length: Number(given.count) }, (_, n) => `${given.prefix}-${n}`);

export const payload = (key) => ({
  From: "shop@example.com",
  To: "ann@example.com",
  Subject: "Your order",
  HtmlBody: HTML,
  TextBody: TEXT,
  MessageStream: "outbound",
  Metadata: { notifyq: key },
});

// One POST on a keep-alive agent: Node's own client, which is faster than its fetch.
export function poster() {
  const agent = new http.Agent({ keepAlive: true, maxSockets: slots, noDelay: true });
  const url = new URL("/email", given.url);
  const target = { agent, method: "POST", hostname: url.hostname, port: url.port, path: url.pathname };
  return (email) =>
    new Promise((resolve, reject) => {
      const body = Buffer.from(JSON.stringify(email));
      const headers = {
        "X-Postmark-Server-Token": "bench-token",
        Accept: "application/json",
        "Content-Type": "application/json",
        "Content-Length": body.length,
      };
      const request = http.request({ ...target, headers }, (response) => {
        response.resume();
        response.on("end", () =>
          response.statusCode === 200 ? resolve() : reject(new Error(`the sink answered ${response.statusCode}`)),
        );
      });
      request.on("error", reject);
      request.end(body);
    });
}

// CLOCK_MONOTONIC seconds, as Python's time.monotonic().
const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

export async function produce(enqueue) {
  const sent = [];
  for (const key of keys()) {
    await sleep(Number(given.gap) * (0.7 + 0.6 * Math.random()));
    const start = now();
    await enqueue(key);
    sent.push([key, start, now()]);
  }
  say(sent);
}

export function ready() {
  process.on("SIGTERM", () => process.exit(0));
  say({ ready: true });
}

export function batches(size) {
  const all = keys();
  return Array.from({ length: Math.ceil(all.length / size) }, (_, n) => all.slice(n * size, (n + 1) * size));
}
