import assert from "node:assert/strict";
import { test } from "node:test";

import { create, fromBinary, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { status } from "@grpc/grpc-js";
import {
  connect,
  InvalidArgumentError,
  Policies,
  RandomAgent,
  ServerError,
  Tensor,
  type MultiAgentBatch,
  type SamplingOptions,
} from "rollserve";

import type { EpisodeBatchSchema } from "#dist/generated/rollserve/v1/episode_batch_pb";
import type { MultiAgentBatchSchema, PolicyBatchSchema } from "#dist/generated/rollserve/v1/multi_agent_batch_pb";
import {
  EvaluateResponseSchema,
  ObtainSamplesRequestSchema,
  UpdateAgentRequestSchema,
  UpdateAgentResponseSchema,
} from "#dist/generated/rollserve/v1/sampler_service_pb";
import { DataType } from "#dist/generated/rollserve/v1/tensor_pb";

import { account, batch, beginning } from "./batches.js";
import { named, response, serve, type Item } from "./scripted_server.js";

const LOST = { code: status.UNAVAILABLE, details: "lost" };

/** A segment of a life: the agent, the first of its own steps, its environment steps, and whether it ends. */
interface Life {
  readonly agent: number;
  readonly first?: number;
  readonly steps: readonly number[];
  readonly ends?: boolean;
  readonly index?: number;
}

type BatchInit = MessageInitShape<typeof EpisodeBatchSchema>;
type PolicyInit = MessageInitShape<typeof PolicyBatchSchema>;
type CrowdInit = MessageInitShape<typeof MultiAgentBatchSchema>;

/** Return the segments of a policy. Rewards are environment steps; observations are 100 times the index more. */
function policy(
  name: string,
  version: bigint,
  lives: readonly Life[],
  fields: PolicyInit = {},
  parts: BatchInit = {},
): PolicyInit {
  const indices = lives.map(({ index = 4 }) => index);
  const steps = lives.flatMap((life) => life.steps);
  const seen = lives.flatMap((life, place) => life.steps.map((step) => 100 * (indices[place] ?? 0) + step));
  const lasts = lives.map((life, place) => 100 * (indices[place] ?? 0) + (life.steps.at(-1) ?? 0) + 1);
  return {
    policy: name,
    agentPositions: lives.map(({ agent }) => agent),
    environmentSteps: steps,
    batch: {
      episodeIndices: indices.map(BigInt),
      firstSteps: lives.map(({ first = 0 }) => BigInt(first)),
      lengths: lives.map((life) => life.steps.length),
      terminated: lives.map(({ ends = true }) => ends),
      truncated: lives.map(() => false),
      policyVersions: lives.map(() => version),
      environmentSeeds: indices,
      observations: [named("", DataType.FLOAT32, [seen.length], Float32Array.from(seen))],
      lastObservations: [named("", DataType.FLOAT32, [lasts.length], Float32Array.from(lasts))],
      actions: [named("", DataType.INT64, [steps.length], BigInt64Array.from(steps, BigInt))],
      rewards: named("", DataType.FLOAT64, [steps.length], Float64Array.from(steps)).tensor,
      ...parts,
    } as BatchInit,
    ...fields,
  } as PolicyInit;
}

/** A part of an episode, and the number of its steps of all agents. */
interface Part {
  readonly index?: number;
  readonly first?: number;
  readonly length: number;
  readonly ends?: boolean;
  readonly agentSteps: number;
}

/** Return a message of parts of episodes. The global state of each step is its number. */
function crowd(parts: readonly Part[], policies: readonly PolicyInit[], others: CrowdInit = {}): Uint8Array {
  const states = parts.flatMap(({ first = 0, length }) => Array.from({ length }, (_, step) => first + step));
  const lasts = parts.map(({ first = 0, length }) => first + length);
  return response({
    case: "multiAgentBatch",
    value: {
      agents: ["red", "blue"],
      policies,
      episodeIndices: parts.map(({ index = 4 }) => BigInt(index)),
      firstSteps: parts.map(({ first = 0 }) => BigInt(first)),
      lengths: parts.map(({ length }) => length),
      terminated: parts.map(({ ends = true }) => ends),
      truncated: parts.map(() => false),
      agentStepCounts: parts.map(({ agentSteps }) => agentSteps),
      globalStates: named("", DataType.FLOAT64, [states.length, 1], Float64Array.from(states)).tensor,
      lastGlobalStates: named("", DataType.FLOAT64, [lasts.length, 1], Float64Array.from(lasts)).tensor,
      ...others,
    } as CrowdInit,
  });
}

// An episode of five environment steps: red acts in all of them, and blue in the second, the third and the fifth, which
// begins another life.
const FIRST = crowd(
  [{ length: 3, ends: false, agentSteps: 5 }],
  [policy("a", 1n, [{ agent: 0, steps: [0, 1, 2], ends: false }]), policy("b", 2n, [{ agent: 1, steps: [1, 2] }])],
);
const SECOND = crowd(
  [{ first: 3, length: 2, agentSteps: 3 }],
  [
    policy("a", 1n, [{ agent: 0, first: 3, steps: [3, 4] }]),
    policy("b", 2n, [{ agent: 1, steps: [4] }], { rewardsBefore: [0.5] }),
  ],
);

/** Sample with the answers of a server; return the batch and the requests. */
async function sampled(
  answers: readonly (readonly Item[])[],
  numSteps = 5,
  options: SamplingOptions = {},
): Promise<{ readonly batch: MultiAgentBatch; readonly requests: readonly Uint8Array[] }> {
  await using server = await serve((_, index) => answers[index] ?? []);
  await using sampler = connect(server.address);
  const obtained = await sampler.multiAgent.obtainSamples(numSteps, options);
  return { batch: obtained, requests: server.calls.map(({ request }) => request) };
}

test("test_episodes_of_many_agents_are_joined_over_messages", async () => {
  const { batch: joined } = await sampled([[beginning(), FIRST, SECOND, account(1, 5)]]);
  assert.deepEqual(joined.agents, ["red", "blue"]);
  assert.deepEqual([[...joined.lengths], [...joined.terminated]], [[5], [1]]);
  assert.deepEqual([joined.numSteps, joined.numAgentSteps, joined.numEpisodes], [5, 8, 1]);
  assert.deepEqual([...(joined.globalStates?.as("float64") ?? [])], [0, 1, 2, 3, 4]);
  assert.deepEqual([...(joined.lastGlobalStates?.as("float64") ?? [])], [5]);
  const [red, blue] = ["a", "b"].map((name) => joined.byPolicy().get(name));
  assert.deepEqual([...(red?.lengths ?? [])], [5]);
  assert.deepEqual([...(blue?.lengths ?? [])], [2, 1]);
  assert.deepEqual([...(blue?.episodeReturns ?? [])], [3, 4.5]);
  assert.deepEqual([...(joined.policies[1]?.envSteps ?? [])], [1, 2, 4]);
  assert.deepEqual([...(joined.policies[1]?.rewardsBefore ?? [])], [0, 0.5]);
  const steps = joined.joint().get("blue");
  assert.deepEqual([...(steps?.acted ?? [])], [0, 1, 1, 0, 1]);
  assert.deepEqual([...(steps?.terminated ?? [])], [0, 0, 1, 0, 1]);
  assert.deepEqual([...(steps?.rewards ?? [])], [0, 1, 2, 0, 4]);
  assert.deepEqual([...(steps?.policyVersions ?? [])], [0n, 2n, 2n, 0n, 2n]);
  assert.deepEqual([...(steps?.observations.plain.as("float32") ?? [])], [0, 401, 402, 0, 404]);
});

test("test_batches_by_agent_have_what_all_policies_did", async () => {
  const values = [named("value", DataType.FLOAT32, [3], Float32Array.from([1, 2, 3]))];
  const lives = [
    { agent: 1, steps: [0, 1], index: 5 },
    { agent: 0, steps: [0] },
  ];
  const message = crowd(
    [
      { length: 1, agentSteps: 2 },
      { index: 5, length: 2, agentSteps: 2 },
    ],
    [policy("a", 1n, lives, {}, { agentInfos: values }), policy("b", 1n, [{ agent: 1, steps: [0] }])],
  );
  const { batch: joined } = await sampled([[beginning(), message, account(2, 3)]]);
  const byAgent = joined.byAgent();
  const blue = byAgent.get("blue");
  assert.deepEqual([...(blue?.episodeIndices ?? [])], [4n, 5n]);
  assert.deepEqual([...(blue?.agentInfos.column("value").as("float32") ?? [])], [0, 1, 2]);
  assert.deepEqual([...(blue?.agentInfos.column("_value").as("bool") ?? [])], [0, 1, 1]);
  assert.deepEqual([...(byAgent.get("red")?.agentInfos.column("value").as("float32") ?? [])], [3]);
});

test("test_versions_of_a_policy_stay_apart", async () => {
  const message = crowd(
    [{ first: 2, length: 2, agentSteps: 2 }],
    [
      policy("a", 2n, [{ agent: 0, first: 3, steps: [3] }]),
      policy("a", 1n, [{ agent: 0, first: 2, steps: [1], ends: false }]),
    ],
  );
  const { batch: joined } = await sampled([[beginning(), message, account(1, 2)]]);
  assert.deepEqual([...(joined.policies[0]?.batch.policyVersions ?? [])], [2n, 1n]);
  assert.equal(joined.policies.length, 1);
  assert.deepEqual([...(joined.joint().get("red")?.acted ?? [])], [0, 1]); // the other step is of an earlier fragment
});

test("test_broken_stream_of_many_agents_continues_within_a_message", async () => {
  const again = crowd(
    [{ length: 4, ends: false, agentSteps: 6 }],
    [policy("a", 1n, [{ agent: 0, steps: [0, 1, 2, 3], ends: false }]), policy("b", 2n, [{ agent: 1, steps: [1, 2] }])],
  );
  const rest = crowd(
    [{ first: 4, length: 1, agentSteps: 2 }],
    [policy("a", 1n, [{ agent: 0, first: 4, steps: [4] }]), policy("b", 2n, [{ agent: 1, steps: [4] }])],
  );
  const lives = [
    { agent: 1, steps: [1, 2] },
    { agent: 1, steps: [4] },
  ];
  const whole = crowd(
    [{ length: 5, agentSteps: 8 }],
    [policy("a", 1n, [{ agent: 0, steps: [0, 1, 2, 3, 4] }]), policy("b", 2n, lives)],
  );
  for (const messages of [[FIRST, SECOND], [again, rest], [whole]]) {
    const answers = [
      [beginning(), FIRST, LOST],
      [beginning(), ...messages, account(1, 5)],
    ];
    const options = { deliver: ["a", "b"], count: "agentSteps" } as const;
    const { batch: joined, requests } = await sampled(answers, 5, options);
    assert.deepEqual(
      joined.policies.map(({ envSteps }) => [...envSteps]),
      [
        [0, 1, 2, 3, 4],
        [1, 2, 4],
      ],
    );
    assert.deepEqual([...(joined.policies[1]?.batch.lengths ?? [])], [2, 1]);
    assert.deepEqual([...(joined.globalStates?.as("float64") ?? [])], [0, 1, 2, 3, 4]);
    assert.deepEqual([[...joined.agentStepCounts], joined.account?.numResumptions], [[8], 1]);
    const { stepCount, options: sent } = fromBinary(ObtainSamplesRequestSchema, requests[1] ?? new Uint8Array());
    assert.deepEqual([stepCount, sent?.firstEpisodeIndex, sent?.deliverPolicies], [5n, 4n, ["a", "b"]]);
  }
});

test("test_broken_stream_asks_for_the_agents_steps_that_are_left", async () => {
  const next = crowd([{ index: 5, length: 1, agentSteps: 2 }], [policy("a", 1n, [{ agent: 0, steps: [0], index: 5 }])]);
  const answers = [
    [beginning(), FIRST, SECOND, LOST],
    [beginning(), next, LOST],
    [beginning(), next, account(1, 1)], // the account alone is missing: the last episode once more
  ];
  const { batch: joined, requests } = await sampled(answers, 10, { count: "agentSteps" });
  assert.deepEqual([...joined.agentStepCounts], [8, 2]);
  assert.deepEqual([joined.account?.numEpisodes, joined.account?.numSteps], [2n, 6n]);
  const sent = requests.map((request) => fromBinary(ObtainSamplesRequestSchema, request));
  assert.deepEqual(
    sent.map(({ stepCount, options }) => [stepCount, options?.firstEpisodeIndex]),
    [
      [10n, undefined],
      [2n, 5n],
      [2n, 5n],
    ],
  );
});

test("test_calls_of_the_other_kind_of_environment_are_refused", async () => {
  const isRefusal = (error: unknown): boolean => error instanceof InvalidArgumentError && error.field === "env";
  await using many = await serve(() => [beginning(), FIRST]);
  await using sampler = connect(many.address);
  await assert.rejects(sampler.obtainSamples(5), isRefusal);
  await assert.rejects(sampled([[beginning(), batch([{ index: 0, rewards: [1] }])]]), isRefusal);
});

test("test_malformed_batches_of_many_agents_are_server_errors", async () => {
  const red = { agent: 0, steps: [0, 1, 2], ends: false };
  const changed = (others: PolicyInit): Uint8Array =>
    crowd([{ length: 3, agentSteps: 3 }], [policy("a", 1n, [red], others)]);
  const messages: [RegExp, Uint8Array][] = [
    [/agentPositions: expected positions among 2 agents, got 2/, changed({ agentPositions: [2] })],
    [/envSteps: expected 3 values, got 1/, changed({ environmentSteps: [0] })],
    [/rewardsBefore: expected 1 values, got 2/, changed({ rewardsBefore: [1, 2] })],
    [/firstSteps: expected 1 values, got 0/, crowd([{ length: 3, agentSteps: 3 }], [], { firstSteps: [] })],
    [
      /globalStates: expected 3 states/,
      crowd([{ length: 3, agentSteps: 3 }], [], {
        globalStates: named("", DataType.FLOAT64, [1], Float64Array.from([1])).tensor,
      }),
    ],
  ];
  for (const [text, message] of messages) {
    await assert.rejects(sampled([[beginning(), message]]), (error: unknown) => {
      return error instanceof ServerError && text.test(error.message);
    });
  }
});

test("test_policies_are_updated_by_name", async () => {
  const answer = toBinary(UpdateAgentResponseSchema, create(UpdateAgentResponseSchema, { policyVersion: 3n }));
  await using server = await serve(() => [answer]);
  await using sampler = connect(server.address);
  const choices = [{ policy: "a", version: -1, weight: 0.25 }, { policy: "b" }];
  const updates = { a: new RandomAgent(), b: { w: Tensor.of(Float64Array.from([1.5])) } };
  const map = [
    { name: "red", choices },
    { prefix: "bl", choices: "b" },
    { position: 1, choices: { policy: "a" } },
  ];
  assert.equal(await sampler.updateAgent(new Policies(updates, map)), 3n);
  const { update } = fromBinary(UpdateAgentRequestSchema, server.calls[0]?.request ?? new Uint8Array());
  assert.ok(update.case === "allWorkers" && update.value.update.case === "policies");
  const { policies, policyMap } = update.value.update.value;
  const { a, b } = policies;
  assert.deepEqual([a?.update.case, b?.update.case], ["agent", "parameters"]);
  assert.deepEqual(
    policyMap?.rules.map((rule) => [
      rule.agents.case,
      rule.agents.value,
      rule.choices.map(({ policy: name, version, weight }) => [name, version, weight]),
    ]),
    [
      [
        "name",
        "red",
        [
          ["a", -1n, 0.25],
          ["b", 0n, 1],
        ],
      ],
      ["prefix", "bl", [["b", 0n, 1]]],
      ["position", 1, [["a", 0n, 1]]],
    ],
  );
});

test("test_evaluation_has_returns_by_agent_and_by_policy", async () => {
  const agentReturns = {
    agents: ["red", "blue"],
    policies: [
      { policy: "a", version: 1n },
      { policy: "b", version: 2n },
    ],
    returns: [1.5, 2.5, NaN, 4],
    policyPositions: [0, 0, -1, 1],
  };
  const evaluation = { returns: [4, 4], lengths: [2n, 1n], account: {}, agentReturns };
  const answers = (value: typeof evaluation): Uint8Array =>
    toBinary(
      EvaluateResponseSchema,
      create(EvaluateResponseSchema, { content: { case: "evaluation", value } as never }),
    );
  await using server = await serve((_, call) =>
    call === 0 ? [answers(evaluation)] : [answers({ ...evaluation, returns: [4] })],
  );
  await using sampler = connect(server.address);
  const { agentReturns: got, lengths } = await sampler.evaluate(2n, {
    policyMaps: [[{ prefix: "", choices: "a" }]],
  });
  assert.deepEqual(lengths, Uint32Array.of(2, 1));
  assert.deepEqual(
    [...(got?.byAgent() ?? [])].map(([name, values]) => [name, [...values]]),
    [
      ["red", [1.5]],
      ["blue", [2.5, 4]],
    ],
  );
  assert.deepEqual(
    [...(got?.byPolicy() ?? [])].map(([name, values]) => [name, [...values]]),
    [
      ["a@1", [2]],
      ["b@2", [4]],
    ],
  );
  await assert.rejects(sampler.evaluate(1), ServerError);
});
