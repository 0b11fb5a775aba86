/**
 * Versions of the agent and the environment that a client has set itself, and expects in its calls.
 *
 * @packageDocumentation
 */

import { randomUUID } from "node:crypto";

import type {
  CallEnvironmentsRequest,
  EvaluationOptions,
  SamplingOptions,
  UpdateAgentRequest,
  UpdateEnvRequest,
} from "./generated/rollserve/v1/sampler_service_pb.js";

/**
 * The versions that the accepted updates of one client returned.
 *
 * The server knows the updates of a client by the client's id. So a call that waits while the same client updates the
 * sampler samples with the new version, and only updates of other clients make it fail.
 */
export class OwnVersions {
  readonly #clientId: string;
  #policyVersion: bigint | undefined;
  #envVersion: bigint | undefined;
  /** The version of the environments that the last agent was checked against. */
  #agentEnvVersion: bigint | undefined;

  /**
   * Start without versions.
   *
   * @param shared - Whether the client samples with whatever other clients set.
   */
  constructor(shared: boolean) {
    this.#clientId = shared ? "" : randomUUID();
  }

  /** Make a call fail if other clients have set what it would sample with, unless its options name versions. */
  expectInCall(options: SamplingOptions | EvaluationOptions): void {
    if (this.#clientId === "") {
      return;
    }
    const expectsPolicy = options.expectedPolicyVersion !== undefined;
    const expectsEnv = options.expectedEnvironmentVersion !== undefined;
    if (!expectsPolicy && !expectsEnv) {
      options.clientId = this.#clientId; // with an id, the numbers that the caller gave would not count
    }
    const namesEnv = options.$typeName === "rollserve.v1.EvaluationOptions" && options.environment !== undefined;
    const replacesPolicy =
      options.$typeName === "rollserve.v1.SamplingOptions" && options.agentUpdate?.update.case === "agent";
    if (!expectsPolicy && !replacesPolicy && options.policyVersion === undefined && this.#policyVersion !== undefined) {
      options.expectedPolicyVersion = this.#policyVersion;
    }
    // A whole agent is checked against whatever environment is there.
    const envVersion = this.#envVersion ?? (replacesPolicy ? undefined : this.#agentEnvVersion);
    if (!expectsEnv && !namesEnv && options.environmentVersion === undefined && envVersion !== undefined) {
      options.expectedEnvironmentVersion = envVersion;
    }
  }

  /** Make an update fail if its agent has to fit other clients' environments, or go into their agents. */
  expectInAgentUpdate(request: UpdateAgentRequest, keepsAny: boolean): void {
    request.clientId = this.#clientId;
    if (this.#clientId !== "" && this.#envVersion !== undefined) {
      request.expectedEnvironmentVersion = this.#envVersion;
    }
    if (this.#clientId !== "" && keepsAny && this.#policyVersion !== undefined) {
      request.expectedPolicyVersion = this.#policyVersion;
    }
  }

  /** Make a call of the environments' methods fail if other clients have set the environments. */
  expectInEnvCall(request: CallEnvironmentsRequest): void {
    request.clientId = this.#clientId;
    if (this.#clientId !== "" && request.environmentVersion === undefined && this.#envVersion !== undefined) {
      request.expectedEnvironmentVersion = this.#envVersion;
    }
  }

  /** Make an update fail if it would change other clients' environments. */
  expectInEnvUpdate(request: UpdateEnvRequest, keepsAny: boolean): void {
    request.clientId = this.#clientId;
    if (this.#clientId !== "" && keepsAny && this.#envVersion !== undefined) {
      request.expectedEnvironmentVersion = this.#envVersion;
    }
  }

  /** Record an accepted update of the agent, of its own or of a call. */
  setAgent(updated: { readonly policyVersion: bigint; readonly environmentVersion: bigint }): void {
    this.#policyVersion = updated.policyVersion;
    this.#agentEnvVersion = updated.environmentVersion;
  }

  /** Record an accepted update of the environments. */
  setEnv(envVersion: bigint): void {
    this.#envVersion = envVersion;
  }
}
