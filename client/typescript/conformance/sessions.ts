/** Sessions of cases. */

import type { DrivenStep, Sampler, Session } from "rollserve";
import { Tensor } from "rollserve";

import { evaluationOptions, tensors, Unsupported, type Arrays, type OptionFields } from "./arguments.js";
import type { Result } from "./operations.js";
import {
  describeAccount,
  describeBatch,
  describeColumn,
  describeError,
  describeInfos,
  describeLeaves,
} from "./results.js";

/** The fields of a session. */
export interface DriveFields {
  readonly fragment_length: number;
  readonly options?: OptionFields;
  readonly agent_infos?: Arrays;
  readonly infos?: boolean;
  readonly record?: boolean;
  readonly next_step?: boolean;
  readonly operations: readonly SessionOperation[];
}

type SessionOperation =
  | { readonly do: "observe" | "batch" | "end" }
  | { readonly do: "step"; readonly actions: Arrays; readonly agent_infos?: Arrays };

/** Perform the operations of a session, which is cancelled unless it has ended by then. */
export async function drive(sampler: Sampler, fields: DriveFields): Promise<Result> {
  const {
    fragment_length,
    options = {},
    agent_infos,
    infos,
    record,
    next_step = false,
    operations,
    ...others
  } = fields;
  Unsupported.unlessEmpty(others);
  const { seed, maxEpisodeLength, envVersion } = evaluationOptions({ ...options, return_returns_before: undefined });
  let session: Session;
  try {
    session = await sampler.drive({
      fragmentLength: fragment_length,
      agentInfos: Object.fromEntries(tensors(agent_infos)),
      infos,
      record,
      seed,
      maxEpisodeLength,
      envVersion,
    });
  } catch (error) {
    const failure = describeError(error);
    return { results: operations.map(() => failure) };
  }
  const results: Result[] = [];
  for (const operation of operations) {
    results.push(await perform(session, operation, next_step).catch(describeError));
  }
  session.close();
  return { results };
}

async function perform(session: Session, operation: SessionOperation, nextStep: boolean): Promise<Result> {
  switch (operation.do) {
    case "observe":
      return { step: describeStep(await session.observe()) };
    case "step": {
      const { terminated, truncated } = await session.observe();
      const idle = nextStep ? terminated.map((flag, row) => flag | (truncated[row] ?? 0)) : undefined;
      const agentInfos = tensors(operation.agent_infos);
      return { step: describeStep(await session.step(tensors(operation.actions), { agentInfos, idle })) };
    }
    case "batch":
      return { batch: describeBatch(await session.batch()) };
    case "end":
      return { account: describeAccount(await session.end()) };
  }
}

function describeStep(step: DrivenStep): object {
  return {
    number: Number(step.number),
    episode_indices: Array.from(step.episodeIndices, Number),
    env_seeds: Array.from(step.envSeeds, Number),
    terminated: Array.from(step.terminated, Boolean),
    truncated: Array.from(step.truncated, Boolean),
    ended_rows: [...step.endedRows],
    rewards: { "": describeColumn(Tensor.of(step.rewards)) },
    observations: describeLeaves(step.observations),
    last_observations: describeLeaves(step.lastObservations),
    infos: describeInfos(step.infos),
    last_infos: describeInfos(step.lastInfos),
  };
}
