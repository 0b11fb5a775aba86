import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";

import { create, toBinary } from "@bufbuild/protobuf";
import { InterceptingCall, ServerCredentials, type Interceptor } from "@grpc/grpc-js";
import { connect, InvalidArgumentError, RandomAgent, UnavailableError } from "rollserve";

import { UpdateAgentResponseSchema } from "#dist/generated/rollserve/v1/sampler_service_pb";

import { account, batch, beginning } from "./batches.js";
import { serve, type ScriptedServer } from "./scripted_server.js";

const ANSWER = toBinary(UpdateAgentResponseSchema, create(UpdateAgentResponseSchema, { policyVersion: 7n }));

/** Files with a certificate for 127.0.0.1 that signs itself, and with its key. */
const folder = mkdtempSync(join(tmpdir(), "rollserve-"));
after(() => {
  rmSync(folder, { recursive: true });
});
const cert = join(folder, "cert.pem");
const key = join(folder, "key.pem");
const curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
const subject = ["-subj", "/CN=rollserve", "-addext", "subjectAltName=IP:127.0.0.1"];
execFileSync("openssl", ["req", "-x509", ...curve, ...subject, "-keyout", key, "-out", cert], { stdio: "pipe" });
const [certBytes, keyBytes] = [readFileSync(cert), readFileSync(key)];

/** Serve with the certificate, to clients that have it, too. */
function serveMutually(): Promise<ScriptedServer> {
  const credentials = ServerCredentials.createSsl(certBytes, [{ private_key: keyBytes, cert_chain: certBytes }], true);
  return serve(() => [ANSWER], { credentials });
}

test("test_pem_is_a_path_or_bytes", async () => {
  await using server = await serveMutually();
  for (const options of [
    { ca: cert, cert, key },
    { ca: certBytes, cert: certBytes, key: new Uint8Array(keyBytes) },
  ]) {
    await using sampler = connect(server.address, options);
    assert.equal(await sampler.updateAgent(new RandomAgent()), 7n);
  }
  await using stranger = connect(server.address, { ca: certBytes });
  await assert.rejects(stranger.updateAgent(new RandomAgent()), UnavailableError);
});

test("test_pem_that_cannot_be_used_is_refused_without_showing_it", () => {
  const text = keyBytes.toString();
  const refused: [object, string, RegExp][] = [
    [{ cert: certBytes, key: Buffer.from("no key") }, "key", /got 6 bytes/],
    [{ cert: certBytes }, "key", /because the other one of cert and key is given/],
    [{ ca: keyBytes }, "ca", /expected certificates in PEM format, got \d+ bytes/],
    [{ cert, key: text }, "key", /expected the path of a file, or bytes, got a text in PEM format/],
    [{ ca: join(folder, "none.pem") }, "ca", /expected a readable file, got .*none\.pem/],
  ];
  for (const [options, field, message] of refused) {
    assert.throws(
      () => connect("127.0.0.1:1", options),
      (error: unknown) => {
        assert.ok(error instanceof InvalidArgumentError);
        assert.equal(error.field, field);
        assert.match(error.message, message);
        assert.ok(!error.message.includes("PRIVATE KEY"));
        return true;
      },
    );
  }
});

test("test_token_function_is_called_for_each_call", async () => {
  await using server = await serve(() => [ANSWER]);
  let numTokens = 0;
  await using sampler = connect(server.address, { token: () => `token-${String(++numTokens)}` });
  await sampler.updateAgent(new RandomAgent());
  await sampler.updateAgent(new RandomAgent());
  const sent = server.calls.map(({ metadata }) => metadata.get("authorization"));
  assert.deepEqual(sent, [["Bearer token-1"], ["Bearer token-2"]]);
  await using empty = connect(server.address, { token: () => "" });
  await assert.rejects(empty.status(), { name: "InvalidArgumentError", field: "token" });
  assert.throws(() => connect("192.0.2.1:50051", { token: () => "secret" }), /token: expected an encrypted connection/);
});

test("test_interceptors_see_and_change_all_calls_in_their_order", async () => {
  await using server = await serve(({ rpc }) =>
    rpc === "UpdateAgent" ? [ANSWER] : [beginning(), batch([{ index: 0, rewards: [1] }]), account(1, 1)],
  );
  const seen: string[] = [];
  const interceptor =
    (name: string): Interceptor =>
    (options, nextCall) =>
      new InterceptingCall(nextCall(options), {
        start: (metadata, listener, next) => {
          seen.push(`${name} ${options.method_definition.path}`);
          metadata.add("x-trace", name);
          setImmediate(() => {
            next(metadata, listener); // as one that waits for a token
          });
        },
      });
  await using sampler = connect(server.address, { interceptors: [interceptor("outer"), interceptor("inner")] });
  await sampler.updateAgent(new RandomAgent());
  assert.equal((await sampler.obtainSamples(1)).numSteps, 1);
  assert.deepEqual(seen, [
    "outer /rollserve.v1.SamplerService/UpdateAgent",
    "inner /rollserve.v1.SamplerService/UpdateAgent",
    "outer /rollserve.v1.SamplerService/ObtainSamples",
    "inner /rollserve.v1.SamplerService/ObtainSamples",
  ]);
  assert.deepEqual(
    server.calls.map(({ metadata }) => metadata.get("x-trace").join()),
    ["outer, inner", "outer, inner"],
  );
});

test("test_calls_of_many_agents_are_made_once", async () => {
  await using sampler = connect("127.0.0.1:1");
  assert.equal(sampler.multiAgent, sampler.multiAgent);
});
