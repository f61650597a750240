// pg-boss: its queue notifies, batches as large as the slots, the next one at once after a full one.
import { createRequire } from "node:module";
import { batches, given, payload, poster, produce, ready, say, slots, verb } from "./common.mjs";

const load = createRequire(new URL("../.env/node/package.json", import.meta.url));
const { PgBoss } = load("pg-boss");
const boss = new PgBoss({ connectionString: given.dsn, max: 10, useListenNotify: true });
boss.on("error", (error) => process.stderr.write(`${error}\n`));

await boss.start();
if (verb === "setup") {
  await boss.createQueue("send", { notify: true });
} else if (verb === "work") {
  const post = poster();
  const work = { batchSize: slots, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true, localConcurrency: 2 };
  await boss.work("send", work, async (jobs) => {
    await Promise.all(jobs.map((job) => post(job.data)));
  });
  ready();
} else if (verb === "produce") {
  await produce((key) => boss.send("send", payload(key)));
} else {
  for (const keys of batches(1000)) {
    await boss.insert("send", keys.map((key) => ({ data: payload(key) })));
  }
  say(null);
}
if (verb !== "work") await boss.stop({ graceful: false });
