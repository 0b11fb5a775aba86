/** The operations of cases. */

import { setImmediate as nextTurn } from "node:timers/promises";

import type {
  EnvSpec,
  EpisodeBatch,
  Json,
  Kwargs,
  MultiAgentApi,
  MultiAgentBatch,
  MultiAgentSampler,
  PolicyMap,
  Sampler,
  Task,
  Transform,
  Vectorization,
  Wrapper,
} from "rollserve";

import {
  agentChange,
  agentUpdate,
  camelKeys,
  evaluationOptions,
  policies,
  samplingOptions,
  Unsupported,
  type ChangeFields,
  type OptionFields,
  type PolicyFields,
  type UpdateFields,
} from "./arguments.js";
import { describeAgentReturns, describeMany } from "./many_agents.js";
import { describeBatch } from "./results.js";
import { drive, type DriveFields } from "./sessions.js";

/** The result of an operation. */
export type Result = Readonly<Record<string, unknown>>;

/** What the client is to do: the kind of operation, and its fields. */
export interface Operation {
  readonly do: string;
}

interface EnvFields {
  readonly id: string;
  readonly kwargs?: Kwargs;
  readonly wrappers?: readonly Wrapper[];
  readonly task?: Task;
  readonly reset_options?: Kwargs;
  readonly vectorization?: Vectorization;
  readonly num_rows?: number;
  readonly transforms?: readonly object[];
  readonly multi_agent?: MultiAgentApi;
  readonly global_state?: boolean;
}

interface SampleFields {
  readonly num_steps: number;
  readonly options?: OptionFields;
  readonly views?: readonly string[];
}

/** The sampler of a case, its warnings, and whether its environment has many agents, whose calls are others. */
export interface Client {
  readonly sampler: Sampler;
  readonly warnings: readonly string[];
  hasManyAgents: boolean;
}

type Operations = Readonly<Record<string, (client: Client, fields: never) => Promise<Result>>>;

/** Perform an operation, and describe its result. */
export async function perform(client: Client, operation: Operation): Promise<Result> {
  const { do: name, ...fields } = operation;
  const run = OPERATIONS[name];
  if (run === undefined) {
    throw new Unsupported(`the operation ${name}`);
  }
  return run(client, fields as never);
}

/** Describe the batch of a call, of one agent or of many. */
function described(batch: EpisodeBatch | MultiAgentBatch, views: readonly string[] = []): Result {
  return "agents" in batch ? describeMany(batch, views) : { batch: describeBatch(batch) };
}

/** Return what has the calls that sample. */
function calls({ sampler, hasManyAgents }: Client): Sampler | MultiAgentSampler {
  return hasManyAgents ? sampler.multiAgent : sampler;
}

function envSpec(fields: EnvFields): EnvSpec {
  const { id, kwargs, wrappers, task, reset_options, vectorization, num_rows, transforms, ...more } = fields;
  const { multi_agent, global_state, ...others } = more;
  Unsupported.unlessEmpty(others);
  const many = { multiAgent: multi_agent, globalState: global_state };
  const optional = { ...many, kwargs, wrappers, task, resetOptions: reset_options, vectorization, numRows: num_rows };
  return { id, ...optional, transforms: transforms?.map((each) => camelKeys(each) as Transform) };
}

const OPERATIONS: Operations = {
  async update_env(client, fields: EnvFields) {
    const { envVersion, agents } = await client.sampler.updateEnv(envSpec(fields));
    client.hasManyAgents = agents.length > 0;
    return { environment_version: Number(envVersion) };
  },

  async update_env_per_worker(
    { sampler },
    fields: { readonly updates: readonly (EnvFields | { readonly kwargs: Kwargs } | null)[] },
  ) {
    const { updates, ...others } = fields;
    Unsupported.unlessEmpty(others);
    const perWorker = updates.map((update) => (update !== null && "id" in update ? envSpec(update) : update));
    const { envVersion } = await sampler.updateEnv({ perWorker });
    return { environment_version: Number(envVersion) };
  },

  async call_environments(
    { sampler },
    fields: {
      readonly method: string;
      readonly arguments?: readonly Json[];
      readonly environment_version?: number;
    },
  ) {
    const { method, arguments: args, environment_version, ...others } = fields;
    Unsupported.unlessEmpty(others);
    return { values: await sampler.callEnvironments(method, args, { envVersion: environment_version }) };
  },

  async change_env({ sampler }, fields: { readonly kwargs: Kwargs }) {
    const { kwargs, ...others } = fields;
    Unsupported.unlessEmpty(others);
    const { envVersion } = await sampler.updateEnv({ kwargs });
    return { environment_version: Number(envVersion) };
  },

  async update_agent({ sampler }, fields: UpdateFields & { readonly skip_if_identical?: boolean }) {
    const { agent, parameters, change, skip_if_identical, ...others } = fields;
    Unsupported.unlessEmpty(others);
    const update = agentUpdate({ agent, parameters, change });
    const policyVersion = await sampler.updateAgent(update, { skipIfIdentical: skip_if_identical });
    return { policy_version: Number(policyVersion) };
  },

  async change_agent({ sampler }, fields: ChangeFields) {
    return { policy_version: Number(await sampler.updateAgent(agentChange(fields))) };
  },

  async update_agent_per_worker({ sampler }, fields: { readonly updates: readonly (UpdateFields | null)[] }) {
    const { updates, ...others } = fields;
    Unsupported.unlessEmpty(others);
    const perWorker = updates.map((update) => update && agentUpdate(update));
    return { policy_version: Number(await sampler.updateAgent({ perWorker })) };
  },

  async update_policies({ sampler }, fields: PolicyFields) {
    return { policy_version: Number(await sampler.updateAgent(policies(fields))) };
  },

  async obtain_samples(client, fields: SampleFields) {
    const { num_steps, options, views, ...others } = fields;
    Unsupported.unlessEmpty(others);
    const begin = performance.now();
    const batch = await calls(client).obtainSamples(num_steps, samplingOptions(options));
    const seconds = (performance.now() - begin) / 1000;
    return { seconds, ...described(batch, views) };
  },

  async obtain_exact_episodes(
    client,
    fields: {
      readonly num_episodes_per_worker: number;
      readonly options?: OptionFields;
      readonly views?: readonly string[];
    },
  ) {
    const { num_episodes_per_worker, options, views, ...others } = fields;
    Unsupported.unlessEmpty(others);
    const batch = await calls(client).obtainExactEpisodes(num_episodes_per_worker, samplingOptions(options));
    return described(batch, views);
  },

  async obtain_fragments(
    client,
    fields: SampleFields & { readonly row_step_count?: number; readonly soft_horizon?: boolean },
  ) {
    const { num_steps, row_step_count, soft_horizon, options, views, ...others } = fields;
    Unsupported.unlessEmpty(others);
    const fragments = { rowStepCount: row_step_count, softHorizon: soft_horizon };
    const batch = await calls(client).obtainFragments(num_steps, { ...samplingOptions(options), ...fragments });
    return described(batch, views);
  },

  /** Read a stream to its end, or close it after some batches. */
  async stream_samples(client, fields: SampleFields & { readonly stop_after?: number; readonly progress?: boolean }) {
    const { num_steps, stop_after = Infinity, progress = false, options, ...others } = fields;
    Unsupported.unlessEmpty(others);
    let numBatches = 0;
    let numSteps = 0;
    const stream = calls(client).streamSamples(num_steps, samplingOptions(options));
    for await (const batch of stream) {
      numBatches += 1;
      numSteps += batch.numSteps;
      if (numBatches >= stop_after) {
        break;
      }
    }
    const { numSimulatedSteps, numEndedEpisodes } = stream;
    const counts = { num_simulated_steps: Number(numSimulatedSteps), num_ended_episodes: Number(numEndedEpisodes) };
    return { num_batches: numBatches, num_steps: numSteps, ...(progress ? { progress: counts } : {}) };
  },

  async drive({ sampler }, fields: DriveFields) {
    return drive(sampler, fields);
  },

  async evaluate(
    { sampler },
    fields: {
      readonly num_episodes: number;
      readonly options?: OptionFields;
      readonly policy_maps?: readonly PolicyMap[];
    },
  ) {
    const { num_episodes, options, policy_maps, ...others } = fields;
    Unsupported.unlessEmpty(others);
    const { returns, lengths, agentReturns } = await sampler.evaluate(num_episodes, {
      ...evaluationOptions(options),
      policyMaps: policy_maps,
    });
    const result = { returns: [...returns], lengths: [...lengths] };
    return agentReturns === undefined ? result : { ...result, agent_returns: describeAgentReturns(agentReturns) };
  },

  async warnings({ warnings }) {
    await nextTurn(); // Node emits warnings a little later
    return { warnings };
  },

  async status({ sampler }) {
    const { policyVersion, envVersion, numWorkers } = await sampler.status();
    return { policy_version: Number(policyVersion), environment_version: Number(envVersion), num_workers: numWorkers };
  },
};
