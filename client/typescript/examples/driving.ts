/**
 * Trainer for CartPole-v1 that acts from outside: the environments run on the server, and the policies in this program.
 *
 *     node build/examples/driving.js [HOST:PORT] [--seed N]
 *
 * It learns four weights by the cross-entropy method: candidates are drawn around a mean, each of them plays an episode
 * in one of the rows, and the best ones make the next mean and deviation.
 *
 * The exit status is 0 if the mean return of 100 new episodes reaches 475, which gymnasium calls solved; 1 if it does
 * not; and 3 if the server cannot be used.
 */

import { parseArgs } from "node:util";

import { connect, RollserveError, type DrivenStep, type Session } from "rollserve";

import { normal, seeded } from "./ppo.js";

const ENV = "CartPole-v1";
const SOLVED_RETURN = 475;
const TRAINED_RETURN = 350; // of candidates, which deviate from the mean that does better
const NUM_EVALUATION_EPISODES = 100;
const NUM_CANDIDATES = 64;
const NUM_ELITES = 12;
const MAX_GENERATIONS = 30;
const MIN_DEVIATION = 0.1;

/** Weights of an observation; the cart is pushed to the right where their product is positive. */
type Weights = readonly number[];

/** Play one episode with each of some policies, and return their returns. */
async function play(session: Session, policies: readonly Weights[]): Promise<Float64Array> {
  const returns = new Float64Array(policies.length);
  const players = new Int32Array(session.numRows).fill(-1); // the policy that each row plays, -1 for none
  let numBegun = 0;
  let numPlaying = policies.length;
  let step = await session.observe();
  while (numPlaying > 0) {
    for (const row of beginningRows(step)) {
      players[row] = numBegun < policies.length ? numBegun++ : -1;
    }
    step = await session.step(actionsOf(step, players, policies));
    step.rewards.forEach((reward, row) => {
      const player = players[row] ?? -1;
      if (player >= 0) {
        returns[player] = (returns[player] ?? 0) + reward;
      }
    });
    numPlaying -= step.endedRows.filter((row) => (players[row] ?? -1) >= 0).length;
  }
  return returns;
}

/** Return the rows whose next step is the first one of an episode. */
function beginningRows(step: DrivenStep): Iterable<number> {
  return step.number === 0n ? step.rewards.keys() : step.endedRows;
}

function actionsOf(step: DrivenStep, players: Int32Array, policies: readonly Weights[]): Uint8Array {
  const observations = step.observations.plain;
  return Uint8Array.from(players, (player, row) => {
    // A row without a policy goes on to the left, so that its episode ends soon.
    const weights = policies[player] ?? [];
    const observation = observations.row(row, "float32");
    return weights.reduce((sum, weight, index) => sum + weight * (observation[index] ?? 0), 0) > 0 ? 1 : 0;
  });
}

/** Train until a generation reaches TRAINED_RETURN, for at most MAX_GENERATIONS; return the last mean. */
async function train(session: Session, random: () => number): Promise<Weights> {
  let mean: Weights = [0, 0, 0, 0];
  let deviation: Weights = [1, 1, 1, 1];
  for (let generation = 1; generation <= MAX_GENERATIONS; generation += 1) {
    const candidates = Array.from({ length: NUM_CANDIDATES }, () =>
      mean.map((weight, index) => weight + (deviation[index] ?? 0) * normal(random)),
    );
    const returns = await play(session, candidates);
    console.error(`generation ${String(generation).padStart(2)}: mean return ${average(returns).toFixed(1)}`);
    const order = [...candidates.keys()].sort((a, b) => (returns[b] ?? 0) - (returns[a] ?? 0));
    const elites = order.slice(0, NUM_ELITES).flatMap((index) => candidates[index] ?? []);
    const each = (weight: number): number[] => elites.filter((_, index) => index % mean.length === weight);
    mean = mean.map((_, weight) => average(each(weight)));
    deviation = mean.map((center, weight) => {
      return Math.sqrt(average(each(weight).map((value) => (value - center) ** 2))) + MIN_DEVIATION;
    });
    if (average(returns) >= TRAINED_RETURN) {
      break;
    }
  }
  return mean;
}

function average(values: ArrayLike<number>): number {
  return Array.from(values).reduce((sum, value) => sum + value, 0) / values.length;
}

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { seed: { type: "string", default: "0" } },
  });
  const seed = Number(values.seed);
  await using sampler = connect(positionals[0] ?? "127.0.0.1:50051");
  await sampler.updateEnv(ENV);
  await using session = await sampler.drive({ seed, record: false }); // the candidates' returns are all it needs
  const began = performance.now();
  const policy = await train(session, seeded(seed));
  const meanReturn = average(await play(session, Array<Weights>(NUM_EVALUATION_EPISODES).fill(policy)));
  const { numSimulatedSteps } = await session.end();
  const seconds = (performance.now() - began) / 1000;
  console.log(
    `demo: ${ENV} mean return ${meanReturn.toFixed(1)} over ${String(NUM_EVALUATION_EPISODES)} episodes, ` +
      `${String(numSimulatedSteps)} steps in ${seconds.toFixed(1)} s`,
  );
  return meanReturn >= SOLVED_RETURN ? 0 : 1;
}

try {
  process.exitCode = await main();
} catch (error) {
  if (!(error instanceof RollserveError)) {
    throw error;
  }
  console.error(`demo: ${error.message.split(/\s+/).join(" ")}`);
  process.exitCode = 3;
}
