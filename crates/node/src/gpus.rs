//! Which layers of a model GPUs take, within the memory that they have or may use.

use motley_engine::{Engine, Placement};
use motley_ggml::{Device, DeviceKind, gpus};
use motley_model::ModelDirectory;

use crate::failure::{Failure, Kind};
use crate::memory::{self, Usage};
use crate::terminal::{self, bytes};

/// What a user may choose about GPUs; options of commands whose help has no room for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct GpuWish {
    /// Layers in GPUs (-ngl), one more for the head [default: what fits]
    #[arg(long, value_name = "N", alias = "n-gpu-layers", hide = true)]
    pub(crate) gpu_layers: Option<usize>,
    /// Memory that may be used of each GPU [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = terminal::parse_bytes, hide = true)]
    pub(crate) gpu_memory: Option<u64>,
}

/// What the parts of a model take in a GPU.
#[derive(Clone, Debug)]
struct Parts {
    /// Weights, keys and values.
    layer_bytes: Vec<u64>,
    head_bytes: u64,
    /// Intermediate values, in each GPU that computes.
    work_bytes: u64,
}

/// Which GPU takes each layer and the head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Share {
    layers: Vec<Option<usize>>,
    head: Option<usize>,
}

/// What may be taken of a GPU's free memory: a twentieth, at least 64 MB, is left alone.
pub(crate) fn room_bytes(free: u64) -> u64 {
    free.saturating_sub((free / 20).max(64_000_000))
}

/// Gives layers and head to the GPUs of this build; the rest is kept as `placement` says.
///
/// # Errors
/// When more layers are asked for than fit, or any of a build that sees no GPU.
pub(crate) fn share(
    directory: &ModelDirectory,
    (usage, context_tokens): (&Usage, u64),
    wish: GpuWish,
    placement: Placement,
) -> Result<Placement, Failure> {
    if wish.gpu_layers == Some(0) {
        return Ok(placement);
    }
    let gpus = gpus();
    if gpus.is_empty() {
        return match wish.gpu_layers {
            None => Ok(placement),
            Some(_) => Err(Failure::new(Kind::Refused, anyhow::anyhow!("this build sees no GPU"))
                .hint("motley version lists its devices; -ngl 0 does without")),
        };
    }
    let needed = memory::needed(directory, usage, context_tokens)?;
    let layers = needed.model.layer_weights_bytes.iter().zip(&needed.model.layer_cache_bytes);
    let parts = Parts {
        layer_bytes: layers.map(|(weights, cache)| weights + cache).collect(),
        // Not what plans call the head: where the embedding is tied, both devices hold the matrix.
        head_bytes: directory.head_matrix().bytes + directory.output_norm.bytes,
        work_bytes: needed.compute_bytes,
    };
    let room = |gpu: &Device| {
        let free = gpu.memory_bytes().0 as u64;
        room_bytes(free).min(wish.gpu_memory.unwrap_or(u64::MAX))
    };
    let rooms: Vec<u64> = gpus.iter().map(room).collect();
    let most = parts.layer_bytes.len() + 1;
    let (mut share, mut taken) = fill(&parts, &rooms, wish.gpu_layers.unwrap_or(most).min(most));
    if taken < most && wish.gpu_layers.is_none_or(|asked| asked >= most) {
        // Layers before the head, which is used once per token as they are.
        (share, taken) = fill(&parts, &rooms, most - 1);
    }
    if let Some(asked) = wish.gpu_layers.filter(|asked| (*asked).min(most) > taken) {
        let rooms: Vec<String> = rooms.iter().map(|room| bytes(*room)).collect();
        let error = anyhow::anyhow!(
            "{asked} layers do not fit into the GPU memory of {}",
            rooms.join(" and ")
        );
        return Err(Failure::new(Kind::Refused, error).hint(format!("{taken} fit: -ngl {taken}")));
    }
    let placement = placement.with_gpu_layers(share.layers);
    Ok(match share.head {
        Some(gpu) => placement.with_gpu_head(gpu),
        None => placement,
    })
}

/// The last `asked` parts of the model as far as they fit, the head being the last of them where
/// more are asked for than there are layers: so that a step changes devices once. The last GPU is
/// filled first. Tells also how many parts were placed.
fn fill(parts: &Parts, rooms: &[u64], asked: usize) -> (Share, usize) {
    let layers = parts.layer_bytes.len();
    let mut share = Share { layers: vec![None; layers], head: None };
    let mut taken = 0;
    let mut gpu = rooms.len();
    let mut left = 0;
    let with_head = asked > layers;
    let mut head = with_head.then_some(parts.head_bytes);
    while taken < asked {
        let placed = taken - usize::from(with_head && head.is_none());
        let bytes = head.unwrap_or_else(|| parts.layer_bytes[layers - 1 - placed]);
        while bytes > left {
            if gpu == 0 {
                return (share, taken);
            }
            gpu -= 1;
            left = rooms[gpu].saturating_sub(parts.work_bytes);
        }
        left -= bytes;
        match head.take() {
            Some(_) => share.head = Some(gpu),
            None => share.layers[layers - 1 - placed] = Some(gpu),
        }
        taken += 1;
    }
    (share, taken)
}

/// Says which GPU has what, and, once, what stays on the processor for want of an operation.
pub(crate) fn tell(engine: &Engine) {
    for gpu in engine.gpu_memory() {
        let head = if gpu.head { " and the head" } else { "" };
        terminal::note(&format!(
            "{} of {} layers{head} in {}: {} ({} weights, {} cache, {} work)\n",
            gpu.layers,
            engine.layers().len(),
            gpu.name,
            bytes(gpu.total_bytes()),
            bytes(gpu.weights_bytes),
            bytes(gpu.cache_bytes),
            bytes(gpu.compute_bytes),
        ));
    }
    if let Some(first) = engine.declined().first() {
        let part = match (engine.declined().len(), first.layer) {
            (1, None) => "the head stays".to_owned(),
            (1, Some(layer)) => format!("layer {layer} stays"),
            (count, _) => format!("{count} layers stay"),
        };
        terminal::note(&format!(
            "{part} on the processor: {} lacks {}\n",
            first.gpu, first.operation
        ));
    }
}

/// Prints the devices of this build.
///
/// # Errors
/// When the output is closed.
pub(crate) fn list() -> anyhow::Result<()> {
    let devices = motley_ggml::devices();
    let lines = devices.iter().filter(|device| device.kind() != DeviceKind::Cpu).map(|device| {
        let (free, total) = device.memory_bytes();
        let (free, total) = (bytes(free as u64), bytes(total as u64));
        format!("{}: {} ({total}, {free} free)\n", device.name(), device.description())
    });
    let text: String = lines.collect();
    terminal::print(if text.is_empty() { "this build sees no GPU\n" } else { &text })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers of 10 and a head of 25, with 5 of work in each GPU.
    fn check(rooms: &[u64], asked: usize, expected: &str) {
        let parts = Parts { layer_bytes: vec![10; 4], head_bytes: 25, work_bytes: 5 };
        let (share, taken) = fill(&parts, rooms, asked);
        let letter = |gpu: &Option<usize>| gpu.map_or("p".to_owned(), |gpu| gpu.to_string());
        let text: String = share.layers.iter().chain([&share.head]).map(letter).collect();
        assert_eq!(format!("{text} {taken}"), expected, "{rooms:?} {asked}");
    }

    #[test]
    fn the_last_layers_go_first_and_the_head_before_them_where_it_is_asked_for() {
        check(&[1000], 5, "00000 5");
        check(&[1000], 4, "0000p 4");
        check(&[1000], 1, "ppp0p 1");
        check(&[1000], 0, "ppppp 0");
        check(&[50], 5, "pp000 3");
        check(&[29], 5, "ppppp 0");
        check(&[29], 4, "pp00p 2");
        check(&[25, 40], 5, "p0011 4");
        check(&[25, 40], 4, "0111p 4");
        check(&[4, 15], 4, "ppp1p 1");
        check(&[], 4, "ppppp 0");
    }
}
