/** Sessions of cases. */

import { setTimeout as sleep } from "node:timers/promises";

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
  readonly lease_seconds?: number;
  readonly min_ready?: number;
  readonly operations: readonly SessionOperation[];
}

type SessionOperation =
  | { readonly do: "observe" | "batch" | "end" }
  | { readonly do: "resume"; readonly after_seconds?: number }
  | { readonly do: "step" | "rows"; readonly actions: Arrays; readonly agent_infos?: Arrays };

/** Perform the operations of a session, which is cancelled unless it has ended by then. */
export async function drive(sampler: Sampler, fields: DriveFields): Promise<Result> {
  const {
    fragment_length,
    options = {},
    agent_infos,
    infos,
    record,
    next_step = false,
    lease_seconds: leaseSeconds,
    min_ready: minReady,
    operations,
    ...others
  } = fields;
  Unsupported.unlessEmpty(others);
  const { seed, maxEpisodeLength, envVersion } = evaluationOptions({ ...options, return_returns_before: undefined });
  const settings = {
    fragmentLength: fragment_length,
    agentInfos: Object.fromEntries(tensors(agent_infos)),
    infos,
    record,
    seed,
    maxEpisodeLength,
    envVersion,
    leaseSeconds,
    minReady,
  };
  // A session that cannot be begun, or taken up, fails its operations.
  let session = sampler.drive(settings);
  const results: Result[] = [];
  for (const operation of operations) {
    if (operation.do === "resume") {
      const { token } = await session.then(closed);
      await sleep(1000 * (operation.after_seconds ?? 0));
      session = sampler.resumeSession(token, settings);
      session.catch(() => undefined); // it is awaited by the next operation
      results.push({});
    } else {
      results.push(await session.then((begun) => perform(begun, operation, next_step)).catch(describeError));
    }
  }
  await session.then(closed, () => undefined);
  return { results };
}

function closed(session: Session): Session {
  session.close();
  return session;
}

async function perform(
  session: Session,
  operation: Exclude<SessionOperation, { readonly do: "resume" }>,
  nextStep: boolean,
): Promise<Result> {
  switch (operation.do) {
    case "observe":
      return { step: describeStep(await session.observe()) };
    case "step": {
      const { terminated, truncated } = await session.observe();
      const idle = nextStep ? terminated.map((flag, row) => flag | (truncated[row] ?? 0)) : undefined;
      const agentInfos = tensors(operation.agent_infos);
      return { step: describeStep(await session.step(tensors(operation.actions), { agentInfos, idle })) };
    }
    case "rows":
      return { rows: await actApart(session, tensors(operation.actions), tensors(operation.agent_infos)) };
    case "batch":
      return { batch: describeBatch(await session.batch()) };
    case "end":
      return { account: describeAccount(await session.end()) };
  }
}

/** Act in rows as they become ready, and describe what each has shown, by step and row. */
async function actApart(
  session: Session,
  actions: ReadonlyMap<string, Tensor>,
  agentInfos: ReadonlyMap<string, Tensor>,
): Promise<object> {
  const { numRows } = session;
  const numSteps = [...actions.values()][0]?.length ?? 0;
  const placesOf = ({ rows, rowSteps }: DrivenStep): number[] =>
    Array.from(rows, (row, position) => Number(rowSteps[position]) * numRows + row);
  const shown: { readonly step: DrivenStep; readonly position: number }[] = [];
  while (Object.keys(shown).length < (numSteps + 1) * numRows) {
    const step = await session.recv();
    const places = placesOf(step);
    places.forEach((place, position) => (shown[place] = { step, position }));
    const acting = places.filter((place) => place < numSteps * numRows);
    if (acting.length > 0) {
      const rows = acting.map((place) => place % numRows);
      await session.send(rowsAt(actions, acting), { rows, agentInfos: rowsAt(agentInfos, acting) });
    }
  }
  const [first] = shown;
  const rewards = Float64Array.from(shown, ({ step, position }) => step.rewards[position] ?? NaN);
  const observations = [...(first?.step.observations ?? [])].map(([name]) => {
    const rows = shown.map(({ step, position }) => step.observations.column(name).rows(position, position + 1));
    return [name, describeColumn(joined(rows, [numSteps + 1, numRows]))] as const;
  });
  return {
    rewards: { "": describeColumn(Tensor.of(rewards, [numSteps + 1, numRows])) },
    observations: Object.fromEntries(observations),
  };
}

/** Return the rows of columns (T, N, …) at some places, by step and row in one number. */
function rowsAt(columns: ReadonlyMap<string, Tensor>, places: readonly number[]): Map<string, Tensor> {
  return new Map(
    [...columns].map(([name, { dtype, shape, data }]) => {
      const flat = Tensor.of(data, [(shape[0] ?? 0) * (shape[1] ?? 0), ...shape.slice(2)], dtype);
      const rows = places.map((place) => flat.rows(place, place + 1));
      return [name, joined(rows, [places.length])];
    }),
  );
}

/** Return rows in one tensor whose first dimensions are given. */
function joined(rows: readonly Tensor[], shape: readonly number[]): Tensor {
  const [first] = rows;
  if (first === undefined) {
    throw new Error("no rows");
  }
  const bytes = new Uint8Array(rows.length * first.byteLength);
  rows.forEach((row, place) => {
    row.copyInto(bytes.subarray(place * first.byteLength, (place + 1) * first.byteLength));
  });
  const { data, dtype, shape: rowShape } = first;
  const Elements = data.constructor as new (buffer: ArrayBuffer) => typeof data;
  return Tensor.of(new Elements(bytes.buffer), [...shape, ...rowShape.slice(1)], dtype);
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
