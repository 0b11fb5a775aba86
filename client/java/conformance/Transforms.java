import io.github.rollserve.DataType;
import io.github.rollserve.Transform;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** Transforms of environments, which have the names and fields of the protos. */
final class Transforms {
    private static final Map<String, Set<String>> FIELDS = Map.ofEntries(
        Map.entry("sign_rewards", Set.of()),
        Map.entry("clip_rewards", Set.of("low", "high")),
        Map.entry("scale_rewards", Set.of("factor", "offset")),
        Map.entry("rescale_actions", Set.of("low", "high")),
        Map.entry("clip_actions", Set.of()),
        Map.entry("cast_observations", Set.of("data_type", "leaves")),
        Map.entry("scale_observations", Set.of("factor", "offset", "leaves")),
        Map.entry("rescale_observations", Set.of("low", "high", "leaves")),
        Map.entry("crop_observations", Set.of("top", "left", "height", "width", "channels_first", "leaves")),
        Map.entry("resize_observations", Set.of("height", "width", "channels_first", "leaves")),
        Map.entry("grayscale_observations", Set.of("keep_channel", "channels_first", "leaves")),
        Map.entry("flatten_observations", Set.of()));

    private Transforms() {}

    static Transform of(Fields transform) {
        String kind = transform.values().keySet().iterator().next();
        Fields settings = transform.fields(kind);
        Set<String> unknown = new TreeSet<>(settings.values().keySet());
        unknown.removeAll(FIELDS.getOrDefault(kind, Set.of()));
        if (!FIELDS.containsKey(kind) || !unknown.isEmpty()) {
            throw new UnsupportedOperationException("the transform " + kind + " with " + unknown);
        }
        return switch (kind) {
            case "sign_rewards" -> new Transform.SignRewards();
            case "clip_rewards" -> new Transform.ClipRewards(
                settings.numberOr("low", Double.NEGATIVE_INFINITY),
                settings.numberOr("high", Double.POSITIVE_INFINITY));
            case "scale_rewards" -> new Transform.ScaleRewards(number(settings, "factor"), number(settings, "offset"));
            case "rescale_actions" ->
                new Transform.RescaleActions(settings.numberOr("low", -1), settings.numberOr("high", 1));
            case "clip_actions" -> new Transform.ClipActions();
            case "cast_observations" -> new Transform.CastObservations(
                DataType.valueOf(settings.text("data_type").replaceFirst("DATA_TYPE_", "").toUpperCase(Locale.ROOT)),
                settings.texts("leaves"));
            case "scale_observations" -> new Transform.ScaleObservations(
                number(settings, "factor"), number(settings, "offset"), settings.texts("leaves"));
            case "rescale_observations" -> new Transform.RescaleObservations(
                number(settings, "low"), number(settings, "high"), settings.texts("leaves"));
            case "crop_observations" -> new Transform.CropObservations(
                integer(settings, "top"), integer(settings, "left"), integer(settings, "height"),
                integer(settings, "width"), settings.flag("channels_first"), settings.texts("leaves"));
            case "resize_observations" -> new Transform.ResizeObservations(
                integer(settings, "height"), integer(settings, "width"), settings.flag("channels_first"),
                settings.texts("leaves"));
            case "grayscale_observations" -> new Transform.GrayscaleObservations(
                settings.flag("keep_channel"), settings.flag("channels_first"), settings.texts("leaves"));
            default -> new Transform.FlattenObservations();
        };
    }

    private static double number(Fields settings, String name) {
        return settings.numberOr(name, 0);
    }

    private static int integer(Fields settings, String name) {
        return (int) number(settings, name);
    }
}
