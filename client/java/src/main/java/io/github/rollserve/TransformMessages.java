package io.github.rollserve;

import io.github.rollserve.v1.CastObservations;
import io.github.rollserve.v1.ClipRewards;
import io.github.rollserve.v1.CropObservations;
import io.github.rollserve.v1.GrayscaleObservations;
import io.github.rollserve.v1.RescaleActions;
import io.github.rollserve.v1.RescaleObservations;
import io.github.rollserve.v1.ResizeObservations;
import io.github.rollserve.v1.ScaleObservations;
import java.util.List;
import java.util.Optional;

/** Transforms as the wire has them. */
final class TransformMessages {
    private TransformMessages() {}

    static io.github.rollserve.v1.Transform of(Transform transform) {
        io.github.rollserve.v1.Transform.Builder message = io.github.rollserve.v1.Transform.newBuilder();
        if (transform instanceof Transform.SignRewards) {
            message.getSignRewardsBuilder();
        } else if (transform instanceof Transform.ClipRewards clip) {
            ClipRewards.Builder wire = message.getClipRewardsBuilder();
            AgentMessages.setBounds(clip.low(), wire::setLow, clip.high(), wire::setHigh);
        } else if (transform instanceof Transform.ScaleRewards scale) {
            message.getScaleRewardsBuilder().setFactor(scale.factor()).setOffset(scale.offset());
        } else if (transform instanceof Transform.RescaleActions rescale) {
            message.getRescaleActionsBuilder().setLow(rescale.low()).setHigh(rescale.high());
        } else if (transform instanceof Transform.ClipActions) {
            message.getClipActionsBuilder();
        } else {
            setObservations(message, transform);
        }
        return message.build();
    }

    private static void setObservations(io.github.rollserve.v1.Transform.Builder message, Transform transform) {
        if (transform instanceof Transform.CastObservations cast) {
            message.getCastObservationsBuilder().setDataType(cast.dataType().toWire()).addAllLeaves(cast.leaves());
        } else if (transform instanceof Transform.ScaleObservations scale) {
            message.getScaleObservationsBuilder()
                .setFactor(scale.factor())
                .setOffset(scale.offset())
                .addAllLeaves(scale.leaves());
        } else if (transform instanceof Transform.RescaleObservations rescale) {
            message.getRescaleObservationsBuilder()
                .setLow(rescale.low())
                .setHigh(rescale.high())
                .addAllLeaves(rescale.leaves());
        } else if (transform instanceof Transform.CropObservations crop) {
            message.getCropObservationsBuilder()
                .setTop(crop.top())
                .setLeft(crop.left())
                .setHeight(crop.height())
                .setWidth(crop.width())
                .setChannelsFirst(crop.channelsFirst())
                .addAllLeaves(crop.leaves());
        } else if (transform instanceof Transform.ResizeObservations resize) {
            message.getResizeObservationsBuilder()
                .setHeight(resize.height())
                .setWidth(resize.width())
                .setChannelsFirst(resize.channelsFirst())
                .addAllLeaves(resize.leaves());
        } else if (transform instanceof Transform.GrayscaleObservations grayscale) {
            message.getGrayscaleObservationsBuilder()
                .setKeepChannel(grayscale.keepChannel())
                .setChannelsFirst(grayscale.channelsFirst())
                .addAllLeaves(grayscale.leaves());
        } else {
            message.getFlattenObservationsBuilder();
        }
    }

    /** Returns the transform that a message describes; empty for a kind that only later clients know. */
    static Optional<Transform> from(io.github.rollserve.v1.Transform message) {
        return Optional.ofNullable(switch (message.getKindCase()) {
            case SIGN_REWARDS -> new Transform.SignRewards();
            case CLIP_REWARDS -> {
                ClipRewards clip = message.getClipRewards();
                yield new Transform.ClipRewards(
                    clip.hasLow() ? clip.getLow() : Double.NEGATIVE_INFINITY,
                    clip.hasHigh() ? clip.getHigh() : Double.POSITIVE_INFINITY);
            }
            case SCALE_REWARDS -> new Transform.ScaleRewards(
                message.getScaleRewards().getFactor(), message.getScaleRewards().getOffset());
            case RESCALE_ACTIONS -> {
                RescaleActions rescale = message.getRescaleActions();
                yield new Transform.RescaleActions(
                    rescale.hasLow() ? rescale.getLow() : -1, rescale.hasHigh() ? rescale.getHigh() : 1);
            }
            case CLIP_ACTIONS -> new Transform.ClipActions();
            case CAST_OBSERVATIONS -> {
                CastObservations cast = message.getCastObservations();
                DataType type = Tensors.dataType("cast_observations.data_type", cast.getDataTypeValue());
                yield new Transform.CastObservations(type, List.copyOf(cast.getLeavesList()));
            }
            case SCALE_OBSERVATIONS -> {
                ScaleObservations scale = message.getScaleObservations();
                yield new Transform.ScaleObservations(
                    scale.getFactor(), scale.getOffset(), List.copyOf(scale.getLeavesList()));
            }
            case RESCALE_OBSERVATIONS -> {
                RescaleObservations rescale = message.getRescaleObservations();
                yield new Transform.RescaleObservations(
                    rescale.getLow(), rescale.getHigh(), List.copyOf(rescale.getLeavesList()));
            }
            case CROP_OBSERVATIONS -> {
                CropObservations crop = message.getCropObservations();
                yield new Transform.CropObservations(
                    crop.getTop(), crop.getLeft(), crop.getHeight(), crop.getWidth(), crop.getChannelsFirst(),
                    List.copyOf(crop.getLeavesList()));
            }
            case RESIZE_OBSERVATIONS -> {
                ResizeObservations resize = message.getResizeObservations();
                yield new Transform.ResizeObservations(
                    resize.getHeight(), resize.getWidth(), resize.getChannelsFirst(),
                    List.copyOf(resize.getLeavesList()));
            }
            case GRAYSCALE_OBSERVATIONS -> {
                GrayscaleObservations grayscale = message.getGrayscaleObservations();
                yield new Transform.GrayscaleObservations(
                    grayscale.getKeepChannel(), grayscale.getChannelsFirst(),
                    List.copyOf(grayscale.getLeavesList()));
            }
            case FLATTEN_OBSERVATIONS -> new Transform.FlattenObservations();
            default -> null;
        });
    }
}
