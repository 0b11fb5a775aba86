/**
 * CartPole-v1 as a host, whose episodes equal gymnasium's to the last bit:
 *
 *     node build/examples/cartpole.js --listen HOST:PORT
 *
 * The formulas, and the order of their operations, are those of gymnasium/envs/classic_control/cartpole.py.
 *
 * @packageDocumentation
 */

import { createRequire } from "node:module";

import { box, discrete, serve, type Environment, type Start, type Step, type Value } from "rollserve-host";

import { NumpyRandom } from "./numpy_random.js";

const { sin, cos } = createRequire(import.meta.url)("../libm.node") as Record<"sin" | "cos", (angle: number) => number>;

const GRAVITY = 9.8;
const POLE_MASS = 0.1;
const TOTAL_MASS = POLE_MASS + 1.0;
const LENGTH = 0.5; // half the pole's
const POLE_MASS_LENGTH = POLE_MASS * LENGTH;
const FORCE = 10.0;
const SECONDS = 0.02; // of a step
const MAX_ANGLE = (12 * 2 * Math.PI) / 360;
const MAX_POSITION = 2.4;
const MAX_STEPS = 500;
const HIGH = Float32Array.of(MAX_POSITION * 2, Infinity, MAX_ANGLE * 2, Infinity);

class CartPole implements Environment {
  readonly observationSpace = box(
    HIGH.map((high) => -high),
    HIGH,
  );
  readonly actionSpace = discrete(2);
  readonly maxEpisodeSteps = MAX_STEPS;

  #x = 0;
  #xDot = 0;
  #theta = 0;
  #thetaDot = 0;
  #numSteps = 0;

  reset(seed: bigint, options: object | undefined): Start {
    if (options !== undefined) {
      throw new Error(`options: expected none, got ${JSON.stringify(options)}`);
    }
    const random = new NumpyRandom(seed);
    this.#x = random.uniform(-0.05, 0.05);
    this.#xDot = random.uniform(-0.05, 0.05);
    this.#theta = random.uniform(-0.05, 0.05);
    this.#thetaDot = random.uniform(-0.05, 0.05);
    this.#numSteps = 0;
    return { observation: this.#observation() };
  }

  step([action]: Value): Step {
    const force = action?.[0] === 1n ? FORCE : -FORCE;
    const cosine = cos(this.#theta);
    const sine = sin(this.#theta);
    const temp = (force + POLE_MASS_LENGTH * (this.#thetaDot * this.#thetaDot) * sine) / TOTAL_MASS;
    const thetaAcceleration =
      (GRAVITY * sine - cosine * temp) / (LENGTH * (4.0 / 3.0 - (POLE_MASS * (cosine * cosine)) / TOTAL_MASS));
    const xAcceleration = temp - (POLE_MASS_LENGTH * thetaAcceleration * cosine) / TOTAL_MASS;
    this.#x += SECONDS * this.#xDot;
    this.#xDot += SECONDS * xAcceleration;
    this.#theta += SECONDS * this.#thetaDot;
    this.#thetaDot += SECONDS * thetaAcceleration;
    this.#numSteps += 1;
    return {
      observation: this.#observation(),
      reward: 1,
      terminated: Math.abs(this.#x) > MAX_POSITION || Math.abs(this.#theta) > MAX_ANGLE,
      truncated: this.#numSteps === MAX_STEPS,
    };
  }

  #observation(): Value {
    return [Float32Array.of(this.#x, this.#xDot, this.#theta, this.#thetaDot)];
  }
}

serve({
  name: "CartPole-v1",
  versions: { "cartpole-typescript": "1" },
  make: ({ kwargs, task }) => {
    if (kwargs !== undefined || task !== undefined) {
      throw new Error(`make: expected no arguments, got ${JSON.stringify({ kwargs, task })}`);
    }
    return new CartPole();
  },
});
