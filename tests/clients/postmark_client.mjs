// Postmark's own client for Node, as its users write it; prints what it saw as one JSON line.
import { createRequire } from "node:module";

const require = createRequire(process.env.CLIENT_FOLDER + "/");
const { ServerClient } = require("postmark");
const { host } = new URL(process.env.POSTMARK_API_URL);
const client = new ServerClient(process.env.POSTMARK_SERVER_TOKEN, { useHttps: false, requestHost: host });
const plain = { From: "a@example.com", TextBody: "t" };

const one = await client.sendEmail({
  ...plain, To: '"Doe, Jane" <b@example.com>', Subject: "s", Metadata: { notifyq: "js" },
});
const batch = await client.sendEmailBatch([{ ...plain, To: "c@example.com" }, { ...plain, To: "broken" }]);
const found = await client.getOutboundMessages({ count: 10, offset: 0, recipient: "b@example.com" });
const details = await client.getOutboundMessageDetails(one.MessageID);
const server = await client.getServer();
const refused = await client
  .sendEmail({ ...plain, To: "gone@example.com" })
  .catch((error) => ({ name: error.name, code: error.code, recipients: error.recipients }));

console.log(JSON.stringify({ one, batch, found, details, server, refused }));
