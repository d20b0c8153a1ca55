//! Static memory planning.
#![forbid(unsafe_code)]
#![allow(missing_docs, dead_code, unused_imports)]
mod error;
mod exact;
mod greedy;
mod instance;
mod occupancy;
mod problem;
mod validate;
pub use error::*;
pub use problem::*;
pub mod lab {
    use super::*;
    use crate::greedy::*;
    use crate::instance::*;
    use crate::occupancy::*;
    use std::sync::atomic::AtomicBool;
    use std::time::*;
    pub fn greedy(p: &Problem) {
        let t0 = Instant::now();
        let ties = ties(p).unwrap();
        let inst = Instance::new(p, &ties, &|_| true).unwrap();
        let lb = inst.lower_bound();
        let comps = inst.components();
        println!("compile {:?} sections {} items {} lb {} comps {} largest {} grain {}", t0.elapsed(), inst.sections, inst.items.len(), lb, comps.len(), comps.iter().map(|c| c.items.len()).max().unwrap_or(0), inst.grain());
        let m = measures(&inst);
        let mut occ = Occupancy::new(inst.sections);
        for o in Order::ALL {
            for f in [Fit::First, Fit::Best] {
                let t = Instant::now();
                let ord = ordered(&inst, &m, o);
                let r = pack(&inst, &ord, f, u64::MAX, &mut occ).unwrap();
                println!("  {o:?} {f:?} {:.5} {:?}", r.peak as f64 / lb as f64, t.elapsed());
            }
        }
    }
    pub fn exact(p: &Problem, cap: Option<u64>, secs: f64) {
        let ties = ties(p).unwrap();
        let inst = Instance::new(p, &ties, &|_| true).unwrap();
        let lb = inst.lower_bound();
        let cap = cap.unwrap_or(lb);
        let m = measures(&inst);
        for (name, ord) in exact::orders(&inst, &m) {
            let t = Instant::now();
            let f = AtomicBool::new(false);
            let (r, n) = exact::search(&inst, &ord, cap, exact::Stop { nodes: u64::MAX, deadline: Some(Instant::now() + Duration::from_secs_f64(secs)), flags: [&f, &f] });
            println!("  {name} {} nodes {n} {:?}", match r { exact::Outcome::Found(_) => "FOUND", exact::Outcome::None => "none", _ => "stopped" }, t.elapsed());
        }
    }
}
