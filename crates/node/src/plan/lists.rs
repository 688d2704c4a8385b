//! What can be named: models, clusters and methods that are built in.

use motley_cluster::{builtin_cluster, builtin_cluster_names, builtin_model, builtin_model_names};
use motley_planner::Method;

use super::Arguments;
use crate::terminal::{Table, bytes};

/// The lists that are asked for, if any.
pub(super) fn asked(arguments: &Arguments) -> Option<String> {
    let mut lists = Vec::new();
    if arguments.list_models {
        lists.push(models());
    }
    if arguments.list_clusters {
        lists.push(clusters());
    }
    if arguments.list_methods {
        lists.push(methods());
    }
    (!lists.is_empty()).then(|| lists.join("\n"))
}

fn models() -> String {
    let mut table = Table::new(["model", "size", "layers", "experts"]);
    for name in builtin_model_names() {
        let Some(model) = builtin_model(&name) else { continue };
        let experts = model.experts.map(|e| format!("{} of {}", e.used, e.count));
        table.row([
            name,
            bytes(model.file_bytes().count()),
            model.layers_count().to_string(),
            experts.unwrap_or_default(),
        ]);
    }
    table.render()
}

fn clusters() -> String {
    let mut table = Table::new(["cluster", "devices"]);
    for name in builtin_cluster_names() {
        let Ok(cluster) = builtin_cluster(name) else { continue };
        let devices = cluster.devices().iter();
        let devices: Vec<String> =
            devices.map(|device| format!("{} ({})", device.name, device.hardware_name())).collect();
        table.row([(*name).to_owned(), devices.join(", ")]);
    }
    table.render()
}

fn methods() -> String {
    let mut table = Table::new(["method", "what it does"]);
    for method in Method::ALL {
        table.row([method.name(), meaning(method)]);
    }
    table.render()
}

fn meaning(method: Method) -> &'static str {
    match method {
        Method::Auto => "chooses by objective and number of devices",
        Method::Halda => "latency: one ring by a single integer program",
        Method::HaldaPaper => "latency: prima.cpp's published iteration",
        Method::HaldaExact => "latency: exhaustive search of one ring",
        Method::Pareto => "load: exact search over groups, roles and slots",
        Method::Genetic => "load: E2LLM's genetic search",
        Method::Hierarchical => "load: sites first, then devices, for very many devices",
        Method::FinishingTime => "load: least time to finish one request, whatever the arrivals",
        Method::AdaptedSplitwise => "load: strongest replicas prefill, by the ratio of phases",
        Method::MixedPool => "load: every replica does both phases",
        Method::Hexgen2Like => "load: constructive grouping, improved along bottlenecks",
        Method::ParallaxLike => "load: as many short pipelines as fit",
        Method::MemoryProportional => "one ring, layers by memory",
        Method::FlopsProportional => "one ring, layers by compute rate",
        Method::FillFastestGpu => "fastest GPU first, then the next",
        Method::Uniform => "one ring, equal layers",
        Method::BestSingleDevice => "the one device that serves best alone",
    }
}
