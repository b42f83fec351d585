// Drives the admin API by the types that openapi-typescript has made of its description; `tsc` refuses what they do not have.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { argv: string[] };
const client = createClient<paths>({ baseUrl: process.argv[2]!, headers: { "Statechannel-Client": "typescript" } });
const wait = { Prefer: "wait=60" };

function done<Document>(answer: { data?: Document; error?: components["schemas"]["Problem"] }): Document {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

async function until<Found>(look: () => Promise<Found | undefined>): Promise<Found> {
  for (;;) {
    const found = await look();
    if (found !== undefined) return found;
    await new Promise((again) => setTimeout(again, 200));
  }
}

done(await client.POST("/v1/namespaces", { params: { header: wait }, body: { namespace: "ts/n", bundles: 2 } }));
const list = async () => done(await client.GET("/v1/bundles", { params: { query: { namespace: "ts/n" } } })).bundles;
const { bundle } = (await until(async () => { const rows = await list().catch(() => []); return rows.length === 2 ? rows[0] : undefined; }));
const [tenant, namespace, range] = bundle.split("/") as [string, string, string];
const assigned = done(await client.POST("/v1/lookup", { params: { header: wait }, body: { name: bundle } }));
const looked = await until(async () => {
  const { data } = await client.GET("/v1/lookup", { params: { query: { name: bundle } } });
  return data?.outcome === "owned" ? data : undefined;
});
const brokers = done(await client.GET("/v1/brokers")).brokers.filter((row) => row.state === "alive");
const destination = brokers.map((row) => row.broker).find((name) => name !== looked.broker)!;
const path = { tenant, namespace, range };
const begun = done(await client.POST("/v1/bundles/{tenant}/{namespace}/{range}/transfer", {
  params: { path, header: { "Idempotency-Key": "ts-1" } }, body: { destination },
}));
const moved = done(await client.GET("/v1/operations/{operation}", { params: { path: { operation: begun.operation! }, header: wait } }));
const split = done(await client.POST("/v1/bundles/{tenant}/{namespace}/{range}/split", {
  params: { path, header: wait }, body: { parts: 2 },
}));
const { history } = done(await client.GET("/v1/audit/history", { params: { query: { name: bundle } } }));
const accepted = history.filter((row) => row.verdict === "accepted" && row.before?.owner === looked.broker);
const audit = done(await client.GET("/v1/audit"));
const tried = done(await client.DELETE("/v1/namespaces/{tenant}/{namespace}", { params: { path, query: { dry_run: true } } }));
const refused = await client.GET("/v1/namespaces/{tenant}/{namespace}", { params: { path: { tenant: "ts", namespace: "none" } } });
console.log(JSON.stringify({
  assigned: assigned.outcome, moved: moved.result, split: split.outcome, released: accepted.length > 0, digest: audit.digest.length,
  would: tried.would?.length, reason: refused.error?.reason,
}));
