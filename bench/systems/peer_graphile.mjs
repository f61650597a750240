// graphile-worker with what its performance page recommends: a local queue and batched completions.
import { createRequire } from "node:module";
import { batches, given, payload, poster, produce, ready, say, slots, verb } from "./common.mjs";

const load = createRequire(new URL("../.env/node/package.json", import.meta.url));
const { Logger, makeWorkerUtils, run, runMigrations } = load("graphile-worker");
const logger = new Logger(() => () => {});

if (verb === "setup") {
  await runMigrations({ connectionString: given.dsn, logger });
} else if (verb === "work") {
  const post = poster();
  await run({
    preset: {
      worker: {
        connectionString: given.dsn,
        concurrentJobs: slots,
        maxPoolSize: 10,
        pollInterval: 1000,
        localQueue: { size: slots + 1 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
        logger,
      },
    },
    noHandleSignals: true,
    taskList: { send: async (email) => post(email) },
  });
  ready();
} else {
  const utils = await makeWorkerUtils({ connectionString: given.dsn, logger });
  if (verb === "produce") {
    await produce((key) => utils.addJob("send", payload(key)));
  } else {
    for (const keys of batches(1000)) {
      await utils.addJobs(keys.map((key) => ({ identifier: "send", payload: payload(key) })));
    }
    say(null);
  }
  await utils.release();
}
