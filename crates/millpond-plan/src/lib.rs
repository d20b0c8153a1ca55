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
    pub fn restarts(p: &Problem, cap: Option<u64>, budget: u64, runs: u64, noise: f64) {
        let ties = ties(p).unwrap();
        let inst = Instance::new(p, &ties, &|_| true).unwrap();
        let cap = cap.unwrap_or(inst.lower_bound());
        let m = measures(&inst);
        let mut seed = 88172645463325252u64;
        let mut rnd = || { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; (seed >> 11) as f64 / (1u64 << 53) as f64 };
        let t = Instant::now();
        let mut total = 0;
        let mut found = Vec::new();
        let bases = ["TWA", "TAW", "WTA", "ATW", "TZW"];
        for run in 0..runs {
            let b = bases[run as usize % bases.len()];
            let mut v: Vec<u32> = (0..inst.items.len() as u32).collect();
            v.sort_by_cached_key(|&i| {
                let q = &m[i as usize];
                let k: Vec<u64> = b.chars().map(|c| { let x = match c { 'T' => q.contention as f64, 'W' => q.width as f64, 'A' => q.area as f64, _ => inst.items[i as usize].size as f64 }; (x * 1000.0 * (1.0 + noise * rnd())) as u64 }).collect();
                (std::cmp::Reverse(k), i)
            });
            let f = AtomicBool::new(false);
            let (r, n) = exact::search(&inst, &v, cap, exact::Stop { nodes: budget, deadline: None, flags: [&f, &f] });
            total += n;
            if matches!(r, exact::Outcome::Found(_)) { found.push((run, b, n)); }
        }
        println!("  budget {budget} noise {noise} found {} of {runs} nodes {total} {:?} {:?}", found.len(), t.elapsed(), &found[..found.len().min(4)]);
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
