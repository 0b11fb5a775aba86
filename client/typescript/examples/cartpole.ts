/**
 * Trainer for CartPole-v1 with PPO, through Rollserve's public client alone.
 *
 *     node build/examples/cartpole.js [HOST:PORT] [--onnx] [--seed N]
 *
 * `train` is the whole loop: sample, learn, send the new parameters. The learner is in ppo.ts. With `--onnx`, the
 * policy goes to the server as a model in the ONNX format instead of an MLP.
 *
 * The exit status is 0 if the mean return of 100 new episodes reaches 475, which gymnasium calls solved; 1 if it does
 * not; and 3 if the server cannot be used.
 */

import { parseArgs } from "node:util";

import { connect, flatSize, MlpAgent, OnnxAgent, RollserveError, type Sampler } from "rollserve";

import { onnxModel } from "./onnx.js";
import { Ppo, seeded } from "./ppo.js";

const ENV = "CartPole-v1";
const SOLVED_RETURN = 475;
const TRAINED_RETURN = 485;
const NUM_EVALUATION_EPISODES = 100;
const STEPS_PER_ITERATION = 4096;
const MAX_ITERATIONS = 150;
const LEARNING_RATE = 2e-3;

/** Train until an evaluation reaches SOLVED_RETURN, for at most MAX_ITERATIONS; return its mean and the steps made. */
async function train(sampler: Sampler, seed: number, asOnnx: boolean): Promise<[meanReturn: number, numSteps: number]> {
  // The server reports the spaces of its environment.
  const { observationSpace, actionSpace } = await sampler.updateEnv(ENV);
  const learner = new Ppo(flatSize(observationSpace), flatSize(actionSpace), seeded(seed));

  // The first update sends the whole agent: its network, its head and its parameters.
  const { parameters } = learner.policy;
  await sampler.updateAgent(
    asOnnx ? new OnnxAgent(onnxModel(parameters), "categorical") : new MlpAgent(parameters, "categorical"),
  );

  let numSteps = 0;
  const began = performance.now();
  for (let iteration = 1; iteration <= MAX_ITERATIONS; iteration += 1) {
    // Whole episodes of the current policy, with at least that many steps in all.
    const batch = await sampler.obtainSamples(STEPS_PER_ITERATION);
    numSteps += batch.numSteps;
    const meanReturn = mean(batch.returns);
    const rate = numSteps / ((performance.now() - began) / 1000);
    console.error(
      `iteration ${String(iteration).padStart(3)}: mean return ${meanReturn.toFixed(1).padStart(5)}, ` +
        `${String(numSteps)} steps, ${rate.toFixed(0)} steps/s`,
    );

    if (meanReturn >= TRAINED_RETURN) {
      const [evaluated, numEvaluationSteps] = await evaluate(sampler);
      numSteps += numEvaluationSteps;
      if (evaluated >= SOLVED_RETURN) {
        return [evaluated, numSteps];
      }
    }

    // Later updates send the parameters alone, by the same names for both kinds of agents.
    learner.learn(batch, LEARNING_RATE * (1 - iteration / (MAX_ITERATIONS + 1)));
    await sampler.updateAgent(learner.policy.parameters);
  }
  const [evaluated, numEvaluationSteps] = await evaluate(sampler);
  return [evaluated, numSteps + numEvaluationSteps];
}

/** Return the mean return of 100 new episodes of the current policy, and their number of steps. */
async function evaluate(sampler: Sampler): Promise<[meanReturn: number, numSteps: number]> {
  const { numWorkers } = await sampler.status();
  const batch = await sampler.obtainExactEpisodes(Math.ceil(NUM_EVALUATION_EPISODES / numWorkers));
  return [mean(batch.returns.subarray(0, NUM_EVALUATION_EPISODES)), batch.numSteps];
}

function mean(values: Float64Array): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { onnx: { type: "boolean", default: false }, seed: { type: "string", default: "0" } },
  });
  await using sampler = connect(positionals[0] ?? "127.0.0.1:50051");
  const began = performance.now();
  const [meanReturn, numSteps] = await train(sampler, Number(values.seed), values.onnx);
  const seconds = (performance.now() - began) / 1000;
  console.log(
    `demo: ${ENV} mean return ${meanReturn.toFixed(1)} over ${String(NUM_EVALUATION_EPISODES)} episodes, ` +
      `${String(numSteps)} steps in ${seconds.toFixed(1)} s, ${(numSteps / seconds).toFixed(0)} steps/s`,
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
