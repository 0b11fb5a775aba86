import assert from "node:assert/strict";
import { test } from "node:test";

import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";
import {
  AccessError,
  CancelledError,
  connect,
  DeadlineError,
  InvalidArgumentError,
  LimitError,
  PreconditionError,
  RandomAgent,
  RollserveError,
  ServerError,
  StoppedError,
  UnavailableError,
  type EpisodeBatch,
} from "rollserve";

import { Reproducibility } from "#dist/generated/rollserve/v1/episode_batch_pb";
import {
  ObtainExactEpisodesRequestSchema,
  ObtainSamplesRequestSchema,
  UpdateAgentResponseSchema,
} from "#dist/generated/rollserve/v1/sampler_service_pb";

import { DataType } from "#dist/generated/rollserve/v1/tensor_pb";

import { account, batch, beginning } from "./batches.js";
import { named, serve } from "./scripted_server.js";

const LOST = { code: status.UNAVAILABLE, details: "lost" };

test("test_errors_have_the_class_of_their_status", async () => {
  const classes: [status, string, new (...args: never[]) => RollserveError][] = [
    [status.INVALID_ARGUMENT, "INVALID_VALUE", InvalidArgumentError],
    [status.NOT_FOUND, "ENV_NOT_FOUND", InvalidArgumentError],
    [status.ALREADY_EXISTS, "SAMPLER_EXISTS", InvalidArgumentError],
    [status.PERMISSION_DENIED, "SCOPE_MISSING", AccessError],
    [status.UNAUTHENTICATED, "TOKEN_EXPIRED", AccessError],
    [status.FAILED_PRECONDITION, "NO_AGENT", PreconditionError],
    [status.RESOURCE_EXHAUSTED, "CALL_TOO_LARGE", LimitError],
    [status.UNAVAILABLE, "WORKER_LOST", UnavailableError],
    [status.INTERNAL, "ENV_FAILED", ServerError],
    [status.INTERNAL, "A_REASON_OF_NEWER_SERVERS", ServerError],
  ];
  for (const [code, reason, expected] of classes) {
    await using server = await serve(() => [{ code, details: "field: text", reason }]);
    await using sampler = connect(server.address);
    await assert.rejects(sampler.updateAgent(new RandomAgent()), (error: unknown) => {
      assert.ok(error instanceof RollserveError);
      assert.equal(error.constructor, expected);
      assert.deepEqual([error.code, error.reason, error.message], [status[code], reason, "field: text"]);
      assert.equal(error.requestId, "0123456789abcdef");
      return true;
    });
  }
});

test("test_first_call_fails_at_once_when_no_server_listens", async () => {
  await using sampler = connect("127.0.0.1:1");
  await assert.rejects(sampler.status(), (error: unknown) => {
    return error instanceof UnavailableError && !error.message.includes("Resolution note");
  });
});

test("test_last_reason_of_a_server_that_went_away_is_the_cause", async () => {
  const stopping = { code: status.UNAVAILABLE, details: "stopping", reason: "SERVER_STOPPING" };
  await using server = await serve((_, index) => [beginning(), index === 0 ? stopping : LOST]);
  await using sampler = connect(server.address, { timeoutSeconds: 0.2 });
  await assert.rejects(sampler.obtainSamples(5), (error: unknown) => {
    assert.ok(error instanceof UnavailableError);
    assert.deepEqual([error.message, error.reason], ["lost", ""]);
    return error.cause instanceof UnavailableError && error.cause.reason === "SERVER_STOPPING";
  });
});

for (const leaving of [
  { ...LOST, reason: "SERVER_STOPPING" },
  { ...LOST, reason: "SAMPLER_TAKEN" },
  { ...LOST, reason: "JOURNAL_LOST" },
  { code: status.CANCELLED, details: "CANCELLED", reason: "" }, // as gRPC resets calls
]) {
  test(`test_call_goes_on_with_the_next_server_after_${leaving.reason || "a_reset"}`, async () => {
    const answer = toBinary(UpdateAgentResponseSchema, create(UpdateAgentResponseSchema, { policyVersion: 7n }));
    const batches = [beginning(), batch([{ index: 0, rewards: [1] }]), account(1, 1)];
    const scripts = [[answer], [leaving], [answer], [leaving], batches, [{ ...LOST, reason: "TOO_FEW_WORKERS" }]];
    await using server = await serve((_, index) => scripts[index] ?? []);
    await using sampler = connect(server.address);
    assert.equal(await sampler.updateAgent(new RandomAgent()), 7n);
    assert.equal(await sampler.updateAgent(new RandomAgent()), 7n);
    assert.equal((await sampler.obtainSamples(1)).numSteps, 1);
    await assert.rejects(sampler.obtainSamples(1), { name: "UnavailableError", reason: "TOO_FEW_WORKERS" });
    assert.equal(server.calls.length, scripts.length);
  });
}

test("test_connection_reaches_a_server_that_is_back_when_others_have_not", async () => {
  const lost = await serve(() => []);
  const { address } = lost;
  await lost[Symbol.asyncDispose]();
  await using early = connect(address);
  for (let attempt = 0; attempt < 6; attempt++) {
    await assert.rejects(early.status(), UnavailableError); // makes gRPC's next pause longer
  }
  const answer = toBinary(UpdateAgentResponseSchema, create(UpdateAgentResponseSchema, { policyVersion: 7n }));
  await using back = await serve(() => [answer], { port: Number(address.split(":")[1]) });
  assert.equal(back.address, address);
  await using sampler = connect(address);
  assert.equal(await sampler.updateAgent(new RandomAgent()), 7n);
});

test("test_proxy_is_named_and_not_on_the_way_to_this_machine", async () => {
  const answer = toBinary(UpdateAgentResponseSchema, create(UpdateAgentResponseSchema, { policyVersion: 7n }));
  await using server = await serve(() => [answer]);
  process.env["http_proxy"] = "http://127.0.0.1:1"; // where nobody listens
  try {
    for (const target of [server.address, server.address.replace("127.0.0.1", "localhost")]) {
      await using sampler = connect(target);
      assert.equal(await sampler.updateAgent(new RandomAgent()), 7n);
    }
    await using proxied = connect("server.invalid:50051");
    await assert.rejects(proxied.status(), /\(through the proxy of http_proxy\)/);
    process.env["no_proxy"] = ".invalid";
    await using direct = connect("server.invalid:50051");
    await assert.rejects(direct.status(), (error: unknown) => !String(error).includes("proxy"));
  } finally {
    delete process.env["http_proxy"];
    delete process.env["no_proxy"];
  }
});

test("test_account_is_refused_before_the_end_of_the_stream", async () => {
  await using server = await serve(() => [beginning(), batch([{ index: 0, rewards: [1] }]), account(1, 1)]);
  await using sampler = connect(server.address);
  const stream = sampler.streamSamples(1);
  await stream.next();
  assert.throws(() => stream.account, { name: "InvalidArgumentError", field: "account" });
  await stream.next();
  assert.equal(stream.account.numSteps, 1n);
});

test("test_stream_resumes_behind_the_last_whole_episode", async () => {
  const scripts = [
    [
      beginning(),
      batch([
        { index: 0, rewards: [1, 2] },
        { index: 1, rewards: [3], ends: false },
      ]),
      LOST,
    ],
    [beginning(), batch([{ index: 1, rewards: [3], ends: false }]), LOST],
    [
      beginning(),
      batch([
        { index: 1, rewards: [3, 4] },
        { index: 2, rewards: [5] },
      ]),
      account(2, 3),
    ],
  ];
  await using server = await serve((_, index) => scripts[index] ?? []);
  await using sampler = connect(server.address);
  const joined = await sampler.obtainSamples(5, { expectedPolicyVersion: 1, prefetch: true });
  assert.deepEqual([...joined.rewards], [1, 2, 3, 4, 5]);
  assert.deepEqual([...joined.lengths], [2, 2, 1]);
  assert.deepEqual(
    [joined.account?.numResumptions, joined.account?.numSteps, joined.account?.numEpisodes],
    [2, 5n, 3n],
  );
  const requests = server.calls.map(({ request }) => fromBinary(ObtainSamplesRequestSchema, request));
  assert.deepEqual(
    requests.map(({ stepCount }) => stepCount),
    [5n, 3n, 3n],
  );
  const last = requests[2]?.options;
  assert.deepEqual([last?.seed, last?.firstEpisodeIndex, last?.policyVersion, last?.samplerRun], [7n, 1n, 1n, "run"]);
  assert.deepEqual([last?.expectedPolicyVersion, last?.prefetch], [undefined, false]);
});

test("test_exact_episodes_resume_with_skipped_episodes_and_workers", async () => {
  const scripts = [
    [beginning(), batch([{ index: 0, rewards: [1] }]), LOST],
    [beginning(), batch([{ index: 1, rewards: [2] }]), account(1, 1)],
  ];
  await using server = await serve((_, index) => scripts[index] ?? []);
  await using sampler = connect(server.address);
  const joined = await sampler.obtainExactEpisodes(1);
  assert.deepEqual([...joined.rewards], [1, 2]);
  const rest = server.calls.map(({ request }) => fromBinary(ObtainExactEpisodesRequestSchema, request))[1];
  assert.deepEqual([rest?.skipEpisodeCount, rest?.options?.firstEpisodeIndex, rest?.options?.workerCount], [1n, 0n, 2]);
});

test("test_stream_of_class_worker_is_not_resumed", async () => {
  const begun = beginning({ reproducibility: Reproducibility.WORKER });
  await using server = await serve(() => [begun, batch([{ index: 0, rewards: [1] }]), LOST]);
  await using sampler = connect(server.address);
  const stream = sampler.streamSamples(5);
  assert.equal((await stream.next()).value?.numSteps, 1);
  await assert.rejects(stream.next(), UnavailableError);
  assert.equal(server.calls.length, 1);
});

test("test_stream_is_not_resumed_when_the_server_has_tried_again", async () => {
  const error = { ...LOST, reason: "WORKER_LOST_AGAIN" };
  await using server = await serve(() => [beginning(), error]);
  await using sampler = connect(server.address);
  await assert.rejects(sampler.obtainSamples(5), (thrown: unknown) => {
    return thrown instanceof UnavailableError && thrown.reason === "WORKER_LOST_AGAIN";
  });
  assert.equal(server.calls.length, 1);
});

test("test_call_without_progress_fails_after_its_timeout", async () => {
  await using server = await serve(() => [beginning(), null]);
  await using sampler = connect(server.address, { timeoutSeconds: 0.2 });
  await assert.rejects(sampler.obtainSamples(5), (error: unknown) => {
    return error instanceof DeadlineError && error instanceof StoppedError && error.reason === "NO_PROGRESS";
  });
});

test("test_call_fails_after_its_deadline", async () => {
  await using server = await serve(() => [beginning(), null]);
  await using sampler = connect(server.address);
  await assert.rejects(sampler.obtainSamples(5, { deadlineSeconds: 0.2 }), (error: unknown) => {
    return error instanceof DeadlineError && error.field === "deadlineSeconds";
  });
});

test("test_signal_cancels_a_call", async () => {
  await using server = await serve(() => [beginning(), null]);
  await using sampler = connect(server.address);
  const controller = new AbortController();
  const call = sampler.obtainSamples(5, { signal: controller.signal });
  controller.abort(new Error("enough"));
  await assert.rejects(call, CancelledError);
  await assert.rejects(sampler.status({ signal: controller.signal }), CancelledError);
});

test("test_close_cancels_calls_that_run", async () => {
  await using server = await serve(() => [beginning(), null]);
  const sampler = connect(server.address);
  const call = sampler.obtainSamples(5);
  sampler.close();
  await assert.rejects(call, CancelledError);
  await assert.rejects(sampler.status(), CancelledError);
});

test("test_leaving_a_loop_cancels_the_call", async () => {
  await using server = await serve(() => [beginning(), batch([{ index: 0, rewards: [1] }]), null]);
  await using sampler = connect(server.address);
  const stream = sampler.streamSamples(5);
  for await (const part of stream) {
    assert.equal(part.numSteps, 1);
    break;
  }
  assert.equal((await stream.next()).done, true);
});

test("test_join_returns_the_rest_of_a_stream", async () => {
  const parts = [
    batch([
      { index: 0, rewards: [1, 2] },
      { index: 1, rewards: [3], ends: false },
    ]),
    batch([{ index: 1, first: 1, rewards: [4, 5] }]),
  ];
  await using server = await serve(() => [beginning(), ...parts, account(2, 5)]);
  await using sampler = connect(server.address);
  const stream = sampler.streamSamples(5);
  assert.equal((await stream.next()).value?.numSteps, 3);
  const rest = await stream.join();
  assert.deepEqual([[...rest.rewards], [...rest.firstSteps]], [[4, 5], [1n]]);
  assert.equal(rest.account?.numSteps, 5n);
});

test("test_token_goes_with_each_call_but_not_in_clear_to_other_machines", async () => {
  await using server = await serve(() => [{ code: status.INTERNAL, details: "" }]);
  await using sampler = connect(server.address, { token: "secret", sampler: "name" });
  await assert.rejects(sampler.status(), ServerError);
  const { metadata } = server.calls[0] ?? assert.fail("no call");
  assert.deepEqual(metadata.get("authorization"), ["Bearer secret"]);
  assert.deepEqual(metadata.get("rollserve-sampler"), ["name"]);
  assert.throws(() => connect("192.0.2.1:50051", { token: "secret" }), /token: expected an encrypted connection/);
});

test("test_call_with_an_agent_fails_at_a_server_that_ignores_it", async () => {
  await using server = await serve(() => [beginning(), batch([{ index: 0, rewards: [1] }]), account(1, 1)]);
  await using sampler = connect(server.address);
  await assert.rejects(sampler.obtainSamples(1, { agent: new RandomAgent() }), (error: unknown) => {
    return error instanceof ServerError && error.code === "UNIMPLEMENTED" && error.field === "agent";
  });
});

test("test_call_with_an_agent_accepts_any_environment", async () => {
  const updated = create(UpdateAgentResponseSchema, { policyVersion: 3n, environmentVersion: 2n });
  await using server = await serve(({ rpc }) =>
    rpc === "UpdateAgent" ? [toBinary(UpdateAgentResponseSchema, updated)] : [{ code: status.INTERNAL, details: "" }],
  );
  await using sampler = connect(server.address);
  await sampler.updateAgent(new RandomAgent());
  await assert.rejects(sampler.obtainSamples(1), ServerError);
  await assert.rejects(sampler.obtainSamples(1, { agent: new RandomAgent() }), ServerError);
  const versions = server.calls.slice(1).map(({ request }) => {
    const { options } = fromBinary(ObtainSamplesRequestSchema, request);
    return [options?.expectedPolicyVersion, options?.expectedEnvironmentVersion];
  });
  assert.deepEqual(versions, [
    [3n, 2n],
    [undefined, undefined],
  ]);
});

test("test_stream_refuses_the_rest_of_another_episode", async () => {
  const scripts = [
    [beginning(), batch([{ index: 0, rewards: [1], ends: false }]), LOST],
    [beginning(), batch([{ index: 1, rewards: [2] }]), account(1, 1)],
  ];
  await using server = await serve((_, index) => scripts[index] ?? []);
  await using sampler = connect(server.address);
  await assert.rejects(
    sampler.obtainSamples(2),
    /^ServerError: malformed stream: expected the rest of episode 0, whose first part was received before, got episode 1/,
  );
});

test("test_recurrent_state_behind_an_interruption_is_a_gap", async () => {
  const states = { initialStates: [named("h", DataType.FLOAT32, [1, 2], Float32Array.of(1, 2))] };
  const scripts = [
    [beginning(), batch([{ index: 0, rewards: [1], ends: false }], states), LOST],
    [beginning(), batch([{ index: 0, rewards: [1, 2] }], states), account(1, 2)],
  ];
  await using server = await serve((_, index) => scripts[index] ?? []);
  await using sampler = connect(server.address);
  const parts: EpisodeBatch[] = [];
  for await (const part of sampler.streamSamples(2)) {
    parts.push(part);
  }
  const [first, rest] = parts;
  assert.deepEqual([...(first?.initialStates.column("h").as("float32") ?? [])], [1, 2]);
  assert.deepEqual([...(rest?.initialStates.column("h").as("float32") ?? [])], [0, 0]);
  assert.deepEqual([...(rest?.initialStates.column("_h").as("bool") ?? [])], [0]);
  assert.deepEqual([rest?.numSteps, rest?.firstSteps[0]], [1, 1n]);
});

test("test_arguments_out_of_range_are_refused", async () => {
  await using sampler = connect("127.0.0.1:1");
  await assert.rejects(
    sampler.obtainSamples(5, { seed: -1 }),
    /seed: expected an integer from 0 to 18446744073709551615, got -1/,
  );
  await assert.rejects(
    sampler.obtainSamples(0.5),
    /numSteps: expected a bigint, or a number that is a safe integer, got 0.5/,
  );
  assert.throws(
    () => connect("127.0.0.1:1", { timeoutSeconds: 0 }),
    /timeoutSeconds: expected a positive number of seconds/,
  );
});

test("test_target_is_an_address_or_has_a_scheme_of_grpc", () => {
  const refused = ["", "localhost", "http://127.0.0.1:50051", "a:1,b:1", "::1:50051", "127.0.0.1:50051/path", "dns:"];
  for (const target of refused) {
    assert.throws(() => connect(target), {
      name: "InvalidArgumentError",
      field: "target",
      message: `target: expected HOST:PORT of one server, such as 127.0.0.1:50051, got '${target}'`,
    });
  }
  for (const target of ["localhost:1", "[::1]:1", "dns:///localhost:1", "ipv4:127.0.0.1:1", "unix:/tmp/socket"]) {
    connect(target).close();
  }
});
