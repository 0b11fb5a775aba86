/**
 * Proximal policy optimization (Schulman et al., https://arxiv.org/abs/1707.06347), with gradients by hand.
 *
 * The learner of cartpole.ts, which is the program to run. Two perceptrons, Adam, generalized advantage estimation, and
 * the clipped objective for a categorical policy.
 */

import { Tensor, type EpisodeBatch } from "rollserve";

const DISCOUNT = 0.99;
const GAE_LAMBDA = 0.95;
const CLIP = 0.2;
const ENTROPY_BONUS = 0.01;
const NUM_EPOCHS = 8;
const MINIBATCH_SIZE = 256;
const MAX_NORM = 0.5;

/** A layer of a perceptron: its parameters, their gradients, and what the last step went through. */
interface Layer {
  readonly weight: Float32Array; // (outputs, inputs)
  readonly bias: Float32Array;
  readonly weightGradient: Float32Array;
  readonly biasGradient: Float32Array;
  readonly output: Float32Array;
  input: Float32Array;
}

/** Hidden layers of tanh and a linear last layer. */
export class Perceptron {
  readonly layers: readonly Layer[];

  /** Make normal weights of variance 1 / inputs; the last layer's are times `lastScale`. */
  constructor(sizes: readonly number[], lastScale: number, random: () => number) {
    this.layers = sizes.slice(1).map((outputs, index) => {
      const inputs = sizes[index] ?? 0;
      const scale = (index === sizes.length - 2 ? lastScale : 1) / Math.sqrt(inputs);
      return {
        weight: Float32Array.from({ length: outputs * inputs }, () => scale * normal(random)),
        bias: new Float32Array(outputs),
        weightGradient: new Float32Array(outputs * inputs),
        biasGradient: new Float32Array(outputs),
        output: new Float32Array(outputs),
        input: new Float32Array(inputs),
      };
    });
  }

  /** The parameters by name, as an MLP agent has them. The tensors refer to the perceptron's own arrays. */
  get parameters(): Record<string, Tensor> {
    const named = this.layers.flatMap(({ weight, bias, input }, index) => [
      [`${String(index)}/weight`, Tensor.of(weight, [bias.length, input.length])] as const,
      [`${String(index)}/bias`, Tensor.of(bias)] as const,
    ]);
    return Object.fromEntries(named);
  }

  /** Return the output for an input; the next step overwrites it. */
  forward(input: Float32Array): Float32Array {
    let x = input;
    for (const layer of this.layers) {
      const { weight, bias, output } = layer;
      const isLast = layer === this.layers[this.layers.length - 1];
      for (let row = 0, at = 0; row < output.length; row += 1) {
        let sum = bias[row] ?? 0;
        for (let column = 0; column < x.length; column += 1, at += 1) {
          sum += (weight[at] ?? 0) * (x[column] ?? 0);
        }
        output[row] = isLast ? sum : Math.tanh(sum);
      }
      layer.input = x;
      x = output;
    }
    return x;
  }

  /** Add the gradients of the parameters, for the gradient of the last output of `forward`. */
  backward(gradient: Float32Array): void {
    let g = gradient;
    for (const { weight, weightGradient, biasGradient, input } of [...this.layers].reverse()) {
      const inputGradient = new Float32Array(input.length);
      for (let row = 0, at = 0; row < g.length; row += 1) {
        const slope = g[row] ?? 0;
        biasGradient[row] = (biasGradient[row] ?? 0) + slope;
        for (let column = 0; column < input.length; column += 1, at += 1) {
          weightGradient[at] = (weightGradient[at] ?? 0) + slope * (input[column] ?? 0);
          inputGradient[column] = (inputGradient[column] ?? 0) + slope * (weight[at] ?? 0);
        }
      }
      // The input is tanh of the layer before, whose derivative is 1 - tanh².
      g = inputGradient.map((slope, column) => slope * (1 - (input[column] ?? 0) ** 2));
    }
  }
}

/** The optimizer of Kingma and Ba, https://arxiv.org/abs/1412.6980, with a limit on the gradient's norm. */
class Adam {
  readonly #pairs: readonly (readonly [Float32Array, Float32Array])[];
  readonly #first: readonly Float32Array[];
  readonly #second: readonly Float32Array[];
  #numUpdates = 0;

  constructor({ layers }: Perceptron) {
    this.#pairs = layers.flatMap((layer) => [
      [layer.weight, layer.weightGradient] as const,
      [layer.bias, layer.biasGradient] as const,
    ]);
    this.#first = this.#pairs.map(([values]) => new Float32Array(values.length));
    this.#second = this.#pairs.map(([values]) => new Float32Array(values.length));
  }

  /** Update the parameters in place, and clear the gradients. */
  update(rate: number): void {
    this.#numUpdates += 1;
    const norm = Math.sqrt(this.#pairs.reduce((sum, [, g]) => sum + g.reduce((squares, x) => squares + x * x, 0), 0));
    const scale = Math.min(1, MAX_NORM / (norm + 1e-8));
    this.#pairs.forEach(([values, gradients], index) => {
      const first = this.#first[index] ?? new Float32Array();
      const second = this.#second[index] ?? new Float32Array();
      for (let at = 0; at < values.length; at += 1) {
        const g = scale * (gradients[at] ?? 0);
        const m = 0.9 * (first[at] ?? 0) + 0.1 * g;
        const v = 0.999 * (second[at] ?? 0) + 0.001 * g * g;
        first[at] = m;
        second[at] = v;
        const step = m / (1 - 0.9 ** this.#numUpdates) / (Math.sqrt(v / (1 - 0.999 ** this.#numUpdates)) + 1e-5);
        values[at] = (values[at] ?? 0) - rate * step;
      }
      gradients.fill(0);
    });
  }
}

/** A learner for Discrete actions. */
export class Ppo {
  /** The network from observations to logits. */
  readonly policy: Perceptron;
  /** The network from observations to expected discounted returns. */
  readonly value: Perceptron;

  readonly #policyAdam: Adam;
  readonly #valueAdam: Adam;
  readonly #random: () => number;

  constructor(observationSize: number, numActions: number, random: () => number) {
    this.policy = new Perceptron([observationSize, 32, 32, numActions], 0.01, random);
    this.value = new Perceptron([observationSize, 32, 32, 1], 1, random);
    this.#policyAdam = new Adam(this.policy);
    this.#valueAdam = new Adam(this.value);
    this.#random = random;
  }

  /** Improve policy and value with a batch of whole episodes, sampled with the current policy. */
  learn(batch: EpisodeBatch, rate: number): void {
    const observations = batch.observations.plain;
    const actions = batch.actions.plain.as("int64");
    const oldLogProbs = batch.agentInfos.column("log_prob").as("float32");
    const inputs = Array.from({ length: batch.numSteps }, (_, step) => observations.row(step, "float32"));
    const { advantages, targets } = this.#advantages(batch, inputs);
    const order = Uint32Array.from({ length: batch.numSteps }, (_, step) => step);
    for (let epoch = 0; epoch < NUM_EPOCHS; epoch += 1) {
      shuffle(order, this.#random);
      for (let begin = 0; begin < order.length; begin += MINIBATCH_SIZE) {
        const steps = order.subarray(begin, begin + MINIBATCH_SIZE);
        for (const step of steps) {
          const input = inputs[step] ?? new Float32Array();
          const action = Number(actions[step]);
          this.#addPolicyGradient(input, action, advantages[step] ?? 0, oldLogProbs[step] ?? 0, steps.length);
          const error = (this.value.forward(input)[0] ?? 0) - (targets[step] ?? 0);
          this.value.backward(Float32Array.of(error / steps.length));
        }
        this.#policyAdam.update(rate);
        this.#valueAdam.update(rate);
      }
    }
  }

  /** Return generalized advantage estimates, normalized, and the values that they aim at, for each step. */
  #advantages(
    batch: EpisodeBatch,
    inputs: readonly Float32Array[],
  ): { advantages: Float32Array; targets: Float32Array } {
    const values = Float32Array.from(inputs, (input) => this.value.forward(input)[0] ?? 0);
    const advantages = new Float32Array(batch.numSteps);
    const { starts } = batch;
    batch.lengths.forEach((length, segment) => {
      const start = starts[segment] ?? 0;
      const last = batch.lastObservations.plain.row(segment, "float32");
      let next = batch.terminated[segment] === 1 ? 0 : (this.value.forward(last)[0] ?? 0);
      let advantage = 0;
      for (let step = start + length - 1; step >= start; step -= 1) {
        const value = values[step] ?? 0;
        advantage = (batch.rewards[step] ?? 0) + DISCOUNT * next - value + DISCOUNT * GAE_LAMBDA * advantage;
        advantages[step] = advantage;
        next = value;
      }
    });
    const targets = advantages.map((advantage, step) => advantage + (values[step] ?? 0));
    const mean = advantages.reduce((sum, x) => sum + x, 0) / advantages.length;
    const deviation = Math.sqrt(advantages.reduce((sum, x) => sum + (x - mean) ** 2, 0) / advantages.length);
    return { advantages: advantages.map((x) => (x - mean) / (deviation + 1e-8)), targets };
  }

  #addPolicyGradient(input: Float32Array, action: number, advantage: number, oldLogProb: number, size: number): void {
    const logits = this.policy.forward(input);
    const highest = Math.max(...logits);
    const total = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - highest), 0)) + highest;
    const logProbs = logits.map((logit) => logit - total);
    const entropy = -logProbs.reduce((sum, logProb) => sum + Math.exp(logProb) * logProb, 0);
    const ratio = Math.exp((logProbs[action] ?? 0) - oldLogProb);
    // The objective min(r A, clip(r) A) has no gradient where the clipped term is the smaller one.
    const isActive = advantage > 0 ? ratio < 1 + CLIP : ratio > 1 - CLIP;
    const weight = isActive ? ratio * advantage : 0;
    const gradient = logProbs.map((logProb, index) => {
      const prob = Math.exp(logProb);
      const bonus = ENTROPY_BONUS * prob * (logProb + entropy);
      return (bonus - weight * ((index === action ? 1 : 0) - prob)) / size;
    });
    this.policy.backward(gradient);
  }
}

/** Return a source of random numbers between 0 and 1: the generator of Park and Miller, with a seed from 0. */
export function seeded(seed: number): () => number {
  const modulus = 2 ** 31 - 1;
  let state = (seed + 1) % modulus;
  return () => {
    state = (48271 * state) % modulus;
    return state / modulus;
  };
}

/** Return a random number of the standard normal distribution. */
export function normal(random: () => number): number {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}

function shuffle(order: Uint32Array, random: () => number): void {
  for (let last = order.length - 1; last > 0; last -= 1) {
    const other = Math.floor(random() * (last + 1));
    [order[last], order[other]] = [order[other] ?? 0, order[last] ?? 0];
  }
}
