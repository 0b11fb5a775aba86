package rollserve

import (
	"crypto/rand"
	"encoding/hex"
	"sync"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// ownVersions are the versions of the agent and the environment that a client has set itself, and expects in its calls.
//
// The server knows the updates of a client by the client's id. So a call that waits while the same client updates the
// sampler samples with the new version, and only updates of other clients make it fail.
type ownVersions struct {
	clientID string // empty for a client that samples with whatever other clients set

	mutex    sync.Mutex
	policy   *int64
	env      *int64
	agentEnv *int64 // the version of the environments that the last agent was checked against
}

func newOwnVersions(shared bool) (*ownVersions, error) {
	if shared {
		return &ownVersions{}, nil
	}
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	return &ownVersions{clientID: hex.EncodeToString(id)}, nil
}

// setAgent records an accepted update of the agent.
func (o *ownVersions) setAgent(policy, env int64) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.policy, o.agentEnv = &policy, &env
}

// setEnv records an accepted update of the environments.
func (o *ownVersions) setEnv(env int64) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.env = &env
}

// expectInSampling makes a call fail if other clients have set what it would sample with. Versions that the options
// name, or expect themselves, stay as they are.
func (o *ownVersions) expectInSampling(options *pb.SamplingOptions) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	expectsAny := options.ExpectedPolicyVersion != nil || options.ExpectedEnvironmentVersion != nil
	if o.clientID == "" {
		return
	}
	if !expectsAny { // with an id, the numbers that the caller gave would not count
		options.ClientId = o.clientID
	}
	replacesAgent := options.GetAgentUpdate().GetAgent() != nil
	if options.ExpectedPolicyVersion == nil && options.PolicyVersion == nil && !replacesAgent {
		options.ExpectedPolicyVersion = o.policy
	}
	if options.ExpectedEnvironmentVersion == nil && options.EnvironmentVersion == nil {
		options.ExpectedEnvironmentVersion = o.env
		if o.env == nil && !replacesAgent { // a whole agent is checked against whatever is there
			options.ExpectedEnvironmentVersion = o.agentEnv
		}
	}
}

// expectInEvaluation does the same for an evaluation.
func (o *ownVersions) expectInEvaluation(options *pb.EvaluationOptions) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	expectsAny := options.ExpectedPolicyVersion != nil || options.ExpectedEnvironmentVersion != nil
	if o.clientID == "" {
		return
	}
	if !expectsAny {
		options.ClientId = o.clientID
	}
	if options.ExpectedPolicyVersion == nil && options.PolicyVersion == nil {
		options.ExpectedPolicyVersion = o.policy
	}
	namesEnv := options.Environment != nil || options.EnvironmentVersion != nil
	if options.ExpectedEnvironmentVersion == nil && !namesEnv {
		options.ExpectedEnvironmentVersion = o.env
		if o.env == nil {
			options.ExpectedEnvironmentVersion = o.agentEnv
		}
	}
}

// expectInAgentUpdate makes an update fail if its agent has to fit other clients' environments, or go into their
// agents.
func (o *ownVersions) expectInAgentUpdate(request *pb.UpdateAgentRequest, keepsAny bool) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	request.ClientId = o.clientID
	if o.clientID == "" {
		return
	}
	request.ExpectedEnvironmentVersion = o.env
	if keepsAny {
		request.ExpectedPolicyVersion = o.policy
	}
}

// expectInEnvCall makes a call of the environments' methods fail if other clients have set the environments.
func (o *ownVersions) expectInEnvCall(request *pb.CallEnvironmentsRequest) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	request.ClientId = o.clientID
	if o.clientID != "" && request.EnvironmentVersion == nil {
		request.ExpectedEnvironmentVersion = o.env
	}
}

// expectInEnvUpdate makes an update fail if it would change other clients' environments.
func (o *ownVersions) expectInEnvUpdate(request *pb.UpdateEnvRequest, keepsAny bool) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	request.ClientId = o.clientID
	if o.clientID != "" && keepsAny {
		request.ExpectedEnvironmentVersion = o.env
	}
}
