import io.github.rollserve.AgentSteps;
import io.github.rollserve.EnvSpec;
import io.github.rollserve.EnvUpdated;
import io.github.rollserve.EvaluationOptions;
import io.github.rollserve.Exploration;
import io.github.rollserve.MlpAgent;
import io.github.rollserve.MultiAgentApi;
import io.github.rollserve.MultiAgentBatch;
import io.github.rollserve.Parameters;
import io.github.rollserve.Policies;
import io.github.rollserve.PolicyMap;
import io.github.rollserve.RollserveException;
import io.github.rollserve.Sampler;
import io.github.rollserve.Space;
import io.github.rollserve.Tensor;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;

/**
 * Improves a policy that all agents of MPE's simple_spread share, by a (1 + 1) evolution strategy: it keeps a random
 * change of the parameters if the agents' mean return over the same episodes rises. {@code Spread HOST:PORT [TRIALS]}.
 *
 * <p>The exit status is 0 if the return has risen, 1 if it has not, and 3 if the server cannot be used.
 */
final class Spread {
    private static final EnvSpec ENV = new EnvSpec("mpe/simple_spread-v3").withMultiAgent(MultiAgentApi.PARALLEL);
    private static final int NUM_EPISODES = 50;
    private static final double STEP_SIZE = 0.2;

    private final Sampler sampler;
    private final Random random = new Random(0);

    private Spread(Sampler sampler) {
        this.sampler = sampler;
    }

    public static void main(String[] arguments) {
        Locale.setDefault(Locale.ROOT);
        int numTrials = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 60;
        boolean hasRisen;
        try (Sampler sampler = Sampler.connect(arguments.length > 0 ? arguments[0] : "127.0.0.1:50051")) {
            hasRisen = new Spread(sampler).improve(numTrials);
        } catch (RollserveException error) {
            System.err.println("spread: " + error.getMessage());
            System.exit(3);
            return;
        }
        System.exit(hasRisen ? 0 : 1);
    }

    private boolean improve(int numTrials) {
        EnvUpdated env = sampler.updateEnv(ENV);
        // Each agent has a space by its name; here they are all alike.
        String first = env.agents().get(0);
        MlpAgent agent = MlpAgent.initial(
            ((Space.Dict) env.observationSpace()).spaces().get(first),
            ((Space.Dict) env.actionSpace()).spaces().get(first), new int[] {16}, 0);
        PolicyMap map = new PolicyMap().withPrefix("agent_", "main");
        sampler.updateAgent(new Policies(Map.of("main", agent)).withPolicyMap(map));
        Parameters best = agent.parameters();
        double initial = meanReturn();
        double highest = initial;
        for (int trial = 1; trial <= numTrials; trial++) {
            Parameters changed = changed(best);
            sampler.updateAgent(new Policies(Map.of("main", changed))); // parameters alone; the map stays
            double score = meanReturn();
            if (score > highest) {
                System.out.printf("trial %d: mean return of an agent %.2f%n", trial, score);
                best = changed;
                highest = score;
            }
        }
        sampler.updateAgent(new Policies(Map.of("main", best)));
        show(sampler.multiAgent().obtainSamples(1000));
        System.out.printf("spread: mean return of an agent %.2f, %.2f before %d trials%n", highest, initial, numTrials);
        return highest > initial;
    }

    /** Returns the mean return of an agent, over episodes that are always the same. */
    private double meanReturn() {
        EvaluationOptions options = new EvaluationOptions().withExploration(Exploration.deterministic());
        return sampler.evaluate(NUM_EPISODES, options).agentReturns().orElseThrow()
            .byPolicy().values().iterator().next().mean();
    }

    private Parameters changed(Parameters parameters) {
        Map<String, Tensor> changed = new TreeMap<>();
        parameters.tensors().forEach((name, tensor) -> {
            float[] values = new float[tensor.size()];
            tensor.floats().get(values);
            for (int i = 0; i < values.length; i++) {
                values[i] += (float) (STEP_SIZE * random.nextGaussian());
            }
            changed.put(name, Tensor.of(values, tensor.shape()));
        });
        return new Parameters(changed);
    }

    /** Prints how often each agent stood still, by its steps in a batch. */
    private static void show(MultiAgentBatch batch) {
        System.out.println(batch);
        for (Map.Entry<String, AgentSteps> agent : batch.joint().entrySet()) {
            double[] actions = agent.getValue().actions().plain().toDoubles();
            boolean[] acted = agent.getValue().acted();
            int numSteps = 0;
            int numStill = 0;
            for (int i = 0; i < acted.length; i++) {
                numSteps += acted[i] ? 1 : 0;
                numStill += acted[i] && actions[i] == 0 ? 1 : 0;
            }
            System.out.printf("%s stood still in %d of %d steps%n", agent.getKey(), numStill, numSteps);
        }
    }
}
