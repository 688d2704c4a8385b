//! Latency planning through the public interface: published behaviour and properties.

use motley_cluster::*;
use motley_planner::*;

fn home(model: &str, options: PlanOptions) -> Problem {
    Problem {
        cluster: builtin_cluster("prima-home").expect("built in"),
        model: builtin_model(model).expect("built in"),
        workload: Workload::single_user(64.0, 64.0, 1024).expect("valid"),
        objective: Objective::Latency,
        options,
    }
}

fn outcome(problem: &Problem, method: Method) -> PlanOutcome {
    plan(problem, method, Budget::DEFAULT).expect("feasible")
}

fn tpot_ms(problem: &Problem, method: Method) -> f64 {
    outcome(problem, method).plan.predicted().tpot_s.as_ms()
}

fn layers_by_device(plan: &Plan) -> String {
    let replica = &plan.replicas()[0];
    let member = |member: &MemberSpec| {
        let count = |kind| member.count(kind);
        let (gpu, ram) = (count(Residency::Gpu), count(Residency::Ram));
        let stream = count(Residency::Stream);
        format!("{} {gpu}g+{ram}r+{stream}s", plan.device_name(member.device))
    };
    let members: Vec<String> = replica.members.iter().map(member).collect();
    format!("k={} {}", replica.rounds, members.join(", "))
}

#[test]
#[expect(clippy::print_stdout, reason = "the table is what the test is read for")]
fn published_latencies_of_the_home_cluster() {
    for id in builtin_model_names() {
        let problem = home(&id, PlanOptions::full());
        let found = outcome(&problem, Method::Halda);
        let paper = plan(&problem, Method::HaldaPaper, Budget::DEFAULT);
        let paper = paper.map(|paper| {
            format!("{:.1} {}", paper.plan.predicted().tpot_s.as_ms(), layers_by_device(&paper.plan))
        });
        println!(
            "{id:28} halda {:8.1} {}   paper {paper:?}",
            found.plan.predicted().tpot_s.as_ms(),
            layers_by_device(&found.plan)
        );
    }
}
