import assert from "node:assert/strict";
import { test } from "node:test";

import { fromBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";
import {
  CancelledError,
  connect,
  DeadlineError,
  InvalidArgumentError,
  PreconditionError,
  ServerError,
  Tensor,
  UnavailableError,
  type Actions,
} from "rollserve";

import {
  DriveEnvironmentsRequestSchema,
  type DriveEnvironmentsRequest,
  type DrivenRows,
  type DrivenRowsSchema,
} from "#dist/generated/rollserve/v1/sampler_service_pb";
import { DataType } from "#dist/generated/rollserve/v1/tensor_pb";

import { account, batch, type Segment } from "./batches.js";
import {
  driven,
  named,
  serve,
  type Arrived,
  type Item,
  type NamedInit,
  type SessionScript,
} from "./scripted_server.js";

type RowsInit = Exclude<MessageInitShape<typeof DrivenRowsSchema>, DrivenRows>;
type Requests = DriveEnvironmentsRequest["content"][];

const NUM_ROWS = 3; // two of the first worker, and one of the second
const plain = { kind: { case: "discrete", value: { n: 2n } } } as const;

function beginning(actionSpace: object = plain, sessionToken = ""): Uint8Array {
  const value = { rowCount: BigInt(NUM_ROWS), observationSpace: plain, actionSpace, sessionToken };
  return driven({ case: "beginning", value });
}

/** Return the observations of some rows: the row and the step. */
function shown(rows: readonly number[], step: number): NamedInit[] {
  return [named("", DataType.FLOAT32, [rows.length, 2], Float32Array.from(rows.flatMap((row) => [row, step])))];
}

/** Return a step, before which the episode of the last row has ended by both causes unless it is the first. */
function step(number: number, others: RowsInit = {}): Uint8Array {
  const first = { observations: shown([0, 1], number), episodeIndices: [0n, 1n], environmentSeeds: [10n, 11n] };
  const second = { observations: shown([2], number), episodeIndices: [2n + BigInt(number)], environmentSeeds: [12n] };
  const ends = { endedRows: [0n], terminated: [true], truncated: [true], lastObservations: shown([2], -number) };
  const workers = [
    { ...first, ...(number > 0 ? { rewards: [1, 2] } : {}) },
    { ...second, ...(number > 0 ? { rewards: [3], ...ends } : {}), ...others },
  ];
  return driven({ case: "step", value: { step: BigInt(number), workers } });
}

/** Return the batches of a round, which a session has in the same fields as a stream, and the round's end. */
function round(...parts: readonly (readonly Segment[])[]): Uint8Array[] {
  const numSteps = parts.flat().reduce((sum, { rewards }) => sum + rewards.length, 0);
  return [
    ...parts.map((segments) => batch(segments)),
    driven({ case: "round", value: { stepCount: BigInt(numSteps) } }),
  ];
}

/** Return the script of a session that answers its actions, and ends with an account. */
function session(onFragmentEnd: () => readonly Uint8Array[] = () => []): SessionScript {
  return (content) => {
    switch (content?.case) {
      case "spec":
        return [beginning(), step(0)];
      case "actions":
        return [step(Number(content.value.step) + 1)];
      case "fragmentEnd":
        return onFragmentEnd();
      default:
        return [account(0, 0)];
    }
  };
}

function requestsOf(calls: readonly Arrived[]): Requests {
  return calls.map(({ request }) => fromBinary(DriveEnvironmentsRequestSchema, request).content);
}

function actionsOf(calls: readonly Arrived[]): unknown[] {
  return requestsOf(calls).flatMap(({ case: name, value }) => {
    if (name !== "actions") {
      return [];
    }
    return [
      [value.step, ...value.actions.map(({ tensor }) => [tensor?.dataType, tensor?.shape, [...(tensor?.data ?? [])]])],
    ];
  });
}

test("test_steps_have_the_rows_of_all_workers", async () => {
  await using server = await serve(() => [], { session: session() });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive({ seed: 2n ** 63n, fragmentLength: 5, infos: true });
  assert.deepEqual([driving.numRows, driving.actionSpace], [NUM_ROWS, { kind: "discrete", n: 2n, start: 0n }]);
  const first = await driving.observe();
  assert.deepEqual([first.number, [...first.rewards], [...first.endedRows]], [0n, [0, 0, 0], []]);
  assert.deepEqual(first.lastObservations.plain.shape, [0, 2]);
  assert.equal(await driving.observe(), first);
  const second = await driving.step([1, 0, 1]);
  assert.deepEqual([...second.observations.plain.as("float32")], [0, 1, 1, 1, 2, 1]);
  assert.deepEqual([...second.lastObservations.plain.as("float32")], [2, -1]);
  assert.deepEqual([second.number, [...second.rewards], [...second.endedRows]], [1n, [1, 2, 3], [2]]);
  assert.deepEqual(
    [[...second.terminated], [...second.truncated]],
    [
      [0, 0, 1],
      [0, 0, 1],
    ],
  );
  assert.deepEqual(
    [[...second.episodeIndices], [...second.envSeeds]],
    [
      [0n, 1n, 3n],
      [10n, 11n, 12n],
    ],
  );
  const { options, ...spec } = requestsOf(server.calls)[0]?.value as { options?: Record<string, unknown> };
  assert.deepEqual([options?.["seed"], options?.["returnSpaces"], options?.["acceptJoined"]], [2n ** 63n, true, false]);
  assert.deepEqual(
    [(spec as Record<string, unknown>)["fragmentLength"], (spec as Record<string, unknown>)["returnInfos"]],
    [5n, true],
  );
});

test("test_infos_that_a_worker_lacks_have_gaps", async () => {
  const infos = [named("speed", DataType.FLOAT64, [1], Float64Array.of(7))];
  await using server = await serve(() => [], { session: () => [beginning(), step(0, { infos })] });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive({ infos: true });
  const step0 = await driving.observe();
  assert.deepEqual([...step0.infos.column("speed").as("float64")], [0, 0, 7]);
  assert.deepEqual([...step0.infos.column("_speed").as("bool")], [0, 0, 1]);
});

test("test_actions_of_other_types_are_sent_in_those_of_the_space", async () => {
  await using server = await serve(() => [], { session: session() });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive();
  const forms: Actions[] = [
    [1, 0, 1],
    Int8Array.of(1, 0, 1),
    [1n, 0n, 1n],
    BigInt64Array.of(1n, 0n, 1n),
    Tensor.of(Uint8Array.of(1, 0, 1), [3], "bool"),
    { "": [1, 0, 1] },
    new Map([["", [1, 0, 1]]]),
  ];
  for (const form of forms) {
    await driving.step(form);
  }
  const bytes = [...new Uint8Array(BigInt64Array.of(1n, 0n, 1n).buffer)];
  assert.deepEqual(
    actionsOf(server.calls),
    forms.map((_, number) => [BigInt(number), [DataType.INT64, [3n], bytes]]),
  );
});

test("test_leaves_of_nested_spaces_are_named_by_their_paths", async () => {
  const float32 = { dataType: DataType.FLOAT32, shape: [2n], ...{ low: scalar(-1), high: scalar(1) } };
  const tuple = { kind: { case: "tuple", value: { spaces: [plain, { kind: { case: "box", value: float32 } }] } } };
  const space = { kind: { case: "dict", value: { spaces: [{ name: "arm", space: tuple }] } } };
  await using server = await serve(() => [], {
    session: (content) => [
      ...(content?.case === "spec" ? [beginning(space)] : []),
      step(content?.case === "spec" ? 0 : 1),
    ],
  });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive({ agentInfos: { log_prob: { dtype: "float16" } } });
  const agentInfos = { log_prob: [0.5, 1, 2] };
  await driving.step({ "arm/0": [0, 1, 0], "arm/1": Float64Array.of(1, 2, 3, 4, 5, 6) }, { agentInfos });
  const sent = requestsOf(server.calls)[1]?.value as { actions: { name: string }[]; agentInfos: { tensor?: object }[] };
  assert.deepEqual(
    sent.actions.map(({ name }) => name),
    ["arm/0", "arm/1"],
  );
  const { data } = (sent.agentInfos[0]?.tensor ?? {}) as { data?: Uint8Array };
  assert.deepEqual([...(data ?? [])], [0, 0x38, 0, 0x3c, 0, 0x40]);
});

test("test_wrong_actions_are_refused_and_not_sent", async () => {
  await using server = await serve(() => [], { session: session() });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive({ agentInfos: { value: { dtype: "float32" } } });
  const agentInfos = { value: [0, 0, 0] };
  const wrong: [Actions, object, string][] = [
    [[0, 1], { agentInfos }, "actions"],
    [Tensor.of(new BigInt64Array(3), [3, 1]), { agentInfos }, "actions"],
    [new Float64Array(3), { agentInfos }, "actions"],
    [[0, 0.5, 1], { agentInfos }, "actions"],
    [[0, 2n ** 63n, 1], { agentInfos }, "actions"],
    [{ left: [0, 1, 0] }, { agentInfos }, "actions"],
    [[0, 1, 0], {}, "agentInfos"],
    [[0, 1, 0], { agentInfos: { value: [1] } }, "agentInfos['value']"],
    [[0, 1, 0], { agentInfos, idle: [true] }, "idle"],
  ];
  for (const [actions, options, field] of wrong) {
    await assert.rejects(driving.step(actions, options), (error: unknown) => {
      return error instanceof InvalidArgumentError && error.field === field;
    });
  }
  assert.equal((await driving.step([0, 1, 0], { agentInfos })).number, 1n);
  assert.equal(actionsOf(server.calls).length, 1);
});

test("test_batch_joins_segments_of_a_round_and_not_of_two", async () => {
  const rounds = [
    ...round([{ index: 0, rewards: [1], ends: false }], [{ index: 0, first: 1, rewards: [2], ends: false }]),
    ...round([{ index: 0, first: 2, rewards: [3, 4] }]),
  ];
  await using server = await serve(() => [], { session: session(() => rounds) });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive();
  await assert.rejects(driving.batch(), PreconditionError);
  await driving.step([0, 0, 0]);
  await driving.step([0, 0, 0], { idle: [true, true, false] });
  const recorded = await driving.batch();
  assert.deepEqual(
    [[...recorded.rewards], [...recorded.lengths]],
    [
      [1, 2, 3, 4],
      [2, 2],
    ],
  );
  assert.deepEqual([...(recorded.rowIndices ?? [])], [0, 0]);
  await assert.rejects(driving.batch(), { name: "PreconditionError", field: "batch" });
});

test("test_end_returns_the_account_and_leaves_what_was_recorded", async () => {
  const script: SessionScript = (content) =>
    content === undefined ? [...round([{ index: 0, rewards: [1, 2, 3] }]), account(1, 3)] : session()(content);
  await using server = await serve(() => [], { session: script });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive();
  await driving.step([0, 0, 0]);
  assert.throws(() => driving.account, { name: "InvalidArgumentError", field: "account" });
  assert.equal((await driving.end()).numSteps, 3n);
  assert.equal((await driving.end()).numSteps, 3n);
  assert.equal(driving.account.numEpisodes, 1n);
  assert.equal((await driving.batch()).numSteps, 3);
  await assert.rejects(driving.step([0, 0, 0]), { name: "PreconditionError", field: "session" });
});

test("test_session_that_records_nothing_has_no_batch", async () => {
  await using server = await serve(() => [], { session: session() });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive({ record: false });
  await driving.step([0, 0, 0]);
  await assert.rejects(driving.batch(), { name: "PreconditionError", field: "batch" });
});

test("test_error_of_the_server_ends_the_session", async () => {
  const error = { code: status.FAILED_PRECONDITION, details: "workers", reason: "WORKER_COUNT" };
  const script: SessionScript = (content) => (content?.case === "actions" ? [error] : session()(content));
  await using server = await serve(() => [], { session: script });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive();
  for (const call of [() => driving.step([0, 0, 0]), () => driving.batch(), () => driving.end()]) {
    await assert.rejects(call, { name: "PreconditionError", reason: "WORKER_COUNT" });
  }
});

test("test_session_without_a_lease_is_not_begun_again", async () => {
  const lost = { code: status.UNAVAILABLE, details: "lost" };
  const stopping = { ...lost, reason: "SERVER_STOPPING" };
  let numBegun = 0;
  const script: SessionScript = (content) => {
    if (content?.case !== "spec") {
      return [lost];
    }
    numBegun += 1;
    return numBegun === 2 ? [stopping] : [beginning(), step(0)];
  };
  await using server = await serve(() => [], { session: script });
  await using sampler = connect(server.address);
  (await sampler.drive()).close();
  await using driving = await sampler.drive(); // the server has answered before
  await assert.rejects(driving.step([0, 0, 0]), UnavailableError);
  assert.equal(numBegun, 3);
});

test("test_session_with_a_lease_goes_on_after_its_stream_breaks", async () => {
  const lost = { code: status.UNAVAILABLE, details: "lost" };
  const first = round([{ index: 0, rewards: [1, 2, 3] }]);
  let isLost = false;
  const script: SessionScript = (content) => {
    switch (content?.case) {
      case "spec":
        return [beginning(plain, "token-7"), step(0)];
      case "resumption":
        isLost = true;
        return [beginning(plain, "token-7"), step(1)];
      case "actions":
        if (content.value.step === 0n) {
          return [...first, ...round([{ index: 1, rewards: [4] }]).slice(0, 1), step(1)];
        }
        return isLost ? [step(2)] : [lost];
      case "sessionEnd":
        return content.value.hasAccount ? [lost] : [...round([{ index: 1, rewards: [4, 5, 6] }]), account(2, 6)];
      default:
        return [];
    }
  };
  await using server = await serve(() => [], { session: script });
  await using sampler = connect(server.address, { sampler: "run-7" });
  await using driving = await sampler.drive({ leaseSeconds: 60 });
  assert.equal(driving.token, "token-7");
  await driving.step([0, 0, 0]);
  assert.equal((await driving.step([1, 1, 1])).number, 2n);
  assert.equal((await driving.end()).numSteps, 6n); // although the stream breaks behind the account
  assert.deepEqual([...(await driving.batch()).rewards], [1, 2, 3, 4, 5, 6]);
  const [spec, , before, resumption, again, end, receipt] = requestsOf(server.calls).map(
    ({ value }) => value as object,
  );
  assert.equal((spec as { leaseSeconds: number }).leaseSeconds, 60);
  assert.deepEqual(
    { ...resumption, $typeName: "" },
    { sampler: "run-7", token: "token-7", roundCount: 1n, $typeName: "" },
  );
  assert.deepEqual(again, before);
  assert.deepEqual(
    [end, receipt].map((each) => (each as { hasAccount: boolean }).hasAccount),
    [false, true],
  );
});

test("test_session_is_taken_up_by_its_token", async () => {
  const gone = { code: status.NOT_FOUND, details: "over", reason: "SESSION_NOT_FOUND" };
  const script: SessionScript = (content) => {
    switch (content?.case) {
      case "resumption":
        return content.value.token === "token-7" ? [beginning(plain, "token-7"), step(5)] : [gone];
      default:
        return [step(6)];
    }
  };
  await using server = await serve(() => [], { session: script });
  await using sampler = connect(server.address);
  await using driving = await sampler.resumeSession("token-7");
  assert.equal((await driving.step([0, 0, 0])).number, 6n);
  assert.deepEqual(actionsOf(server.calls)[0], [5n, [DataType.INT64, [3n], [...new Uint8Array(24)]]]);
  await assert.rejects(sampler.resumeSession("token-8"), { name: "InvalidArgumentError", reason: "SESSION_NOT_FOUND" });
});

/** Return rows of a worker that have made a number of steps. */
function ready(made: number, ...rows: number[]): RowsInit {
  return {
    observations: shown(rows, made),
    episodeIndices: rows.map(BigInt),
    environmentSeeds: rows.map(BigInt),
    rows: rows.map(BigInt),
    rowStepCounts: rows.map(() => BigInt(made)),
  };
}

test("test_rows_do_not_wait_for_each_other", async () => {
  const at = (number: bigint, ...workers: RowsInit[]): Uint8Array =>
    driven({ case: "step", value: { step: number, workers } });
  const lost = { code: status.UNAVAILABLE, details: "lost" };
  let numActions = 0;
  const script: SessionScript = (content) => {
    if (content?.case === "spec") {
      return [beginning(plain, "token-7"), at(0n, ready(0, 0, 1))];
    }
    if (content?.case === "resumption") {
      return [beginning(plain, "token-7"), at(3n, ready(0, 2), ready(1, 0, 1))];
    }
    numActions += 1;
    return [[at(1n, ready(0, 2))], [lost], [], [at(4n, ready(1, 2))]][numActions - 1] ?? [];
  };
  await using server = await serve(() => [], { session: script });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive({ minReady: 1, leaseSeconds: 60 });
  const first = await driving.recv();
  assert.deepEqual([...first.rows], [0, 1]);
  for (const [actions, rows, field] of [
    [[0, 1], [0, 2], "rows[1]"],
    [[0, 1], [1, 1], "rows[1]"],
    [[0], [0, 1], "actions"],
  ] as const) {
    await assert.rejects(driving.send(actions, { rows }), { name: "InvalidArgumentError", field });
  }
  await assert.rejects(driving.step([0, 0, 0]), { name: "InvalidArgumentError", field: "step" });
  await driving.send([1, 0], { rows: [1, 0] });
  await assert.rejects(driving.send([1, 0]), { name: "InvalidArgumentError", field: "rows[0]" }); // they have acted
  assert.deepEqual([...(await driving.recv()).rows], [2]);
  await driving.send([1]);
  const news = await driving.recv();
  assert.deepEqual(
    [[...news.rows], [...news.rowSteps]],
    [
      [0, 1],
      [1n, 1n],
    ],
  );
  assert.deepEqual([...(await driving.recv()).rowSteps], [1n]);
  const sent = requestsOf(server.calls).map(({ value }) => value as { rows: bigint[]; rowStepCounts: bigint[] });
  assert.deepEqual(
    [sent[1]?.rows, sent[1]?.rowStepCounts],
    [
      [1n, 0n],
      [0n, 0n],
    ],
  );
  assert.deepEqual([sent[4], sent[5]], [sent[1], sent[2]]);
});

test("test_closing_a_session_or_its_signal_cancels_it", async () => {
  const script: SessionScript = (content) => (content?.case === "actions" ? [null] : session()(content));
  await using server = await serve(() => [], { session: script });
  await using sampler = connect(server.address);
  const controller = new AbortController();
  const closed = await sampler.drive();
  const aborted = await sampler.drive({ signal: controller.signal });
  const waiting = [closed, aborted].map((driving) => driving.step([0, 0, 0]));
  setTimeout(() => {
    closed.close();
    controller.abort();
  }, 20);
  for (const [index, driving] of [closed, aborted].entries()) {
    await assert.rejects(waiting[index] ?? Promise.resolve(), CancelledError);
    await assert.rejects(driving.step([0, 0, 0]), CancelledError);
  }
});

test("test_step_without_progress_fails_after_its_timeout", async () => {
  const script: SessionScript = (content) => (content?.case === "actions" ? [null] : session()(content));
  await using server = await serve(() => [], { session: script });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive({ timeoutSeconds: 0.2 });
  await assert.rejects(driving.step([0, 0, 0]), (error: unknown) => {
    return error instanceof DeadlineError && error.reason === "NO_PROGRESS";
  });
});

const MALFORMED: [string, readonly Item[], RegExp][] = [
  ["a_flag_of_no_row", [step(1, { terminated: [] })], /terminated: expected a value for each of 1 rows, got 0/],
  ["an_ended_row_of_another_worker", [step(1, { endedRows: [1n] })], /endedRows: expected rows below 1, got 1/],
  ["a_reward_too_much", [step(1, { rewards: [1, 2] })], /rewards: expected 1, got 2/],
  ["other_leaves", [step(1, { observations: [] })], /observations: expected leaves/],
  ["a_round_of_fewer_steps", round([{ index: 0, rewards: [1] }]).slice(1), /round: expected 1 steps, got 0/],
  ["no_message", [Uint8Array.of(255)], /malformed stream/],
];

for (const [name, items, text] of MALFORMED) {
  test(`test_session_with_${name}_fails`, async () => {
    const script: SessionScript = (content) => (content?.case === "actions" ? items : session()(content));
    await using server = await serve(() => [], { session: script });
    await using sampler = connect(server.address);
    await using driving = await sampler.drive();
    await assert.rejects(driving.step([0, 0, 0]), (error: unknown) => {
      return error instanceof ServerError && error.code === "DATA_LOSS" && text.test(error.message);
    });
  });
}

test("test_session_that_ends_without_its_account_fails", async () => {
  const script: SessionScript = (content) => (content === undefined ? [] : session()(content));
  await using server = await serve(() => [], { session: script });
  await using sampler = connect(server.address);
  await using driving = await sampler.drive();
  await assert.rejects(driving.end(), /ServerError: malformed stream: the session ended without its account/);
});

function scalar(value: number): object {
  return named("", DataType.FLOAT32, [], Float32Array.of(value)).tensor;
}
