//! Who shares a route, and who owns which of its buckets. Each method is one atomic statement.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_core::{Acquisition, Buckets, Ownership, Renewal, Routes, Selection, Standing, fair_share};
use tokio::time::Instant;
use uuid::Uuid;

/// The tables `relays` and `buckets`.
#[derive(Debug, Default)]
pub(super) struct Owners {
    routes: BTreeMap<String, Route>,
    /// Grows with each relay that joins: who comes before whom.
    joined: u64,
}

#[derive(Debug, Default)]
struct Route {
    members: BTreeMap<Uuid, Member>,
    /// Who took a bucket last, `None` once it was given back, and its token.
    buckets: BTreeMap<u16, (Option<Uuid>, i64)>,
    /// Owners in a row that ended without giving the bucket back, where there were any.
    deaths: BTreeMap<u16, u32>,
}

#[derive(Debug)]
struct Member {
    lease_end: Instant,
    joined: u64,
    /// All routes of this relay.
    routes: Routes,
}

impl Route {
    /// Members whose lease has ended are gone, and what they own is free.
    fn expire(&mut self, now: Instant) {
        self.members.retain(|_, member| member.lease_end > now);
    }

    fn is_owned(&self) -> bool {
        self.buckets.values().any(|(owner, _)| owner.is_some_and(|owner| self.members.contains_key(&owner)))
    }

    fn standing(&self, ownership: &Ownership, now: Instant) -> Standing {
        let own = self.members.get(&ownership.owner).map_or(u64::MAX, |member| member.joined);
        let live = |(id, member): &(&Uuid, &Member)| **id == ownership.owner || member.lease_end > now;
        let relays = self.members.iter().filter(live).count();
        let before = self.members.iter().filter(live).filter(|(_, member)| member.joined < own).count();
        let free = self.free(ownership, now).count();
        Standing { relays, share: fair_share(relays, before), free }
    }

    fn free<'a>(&'a self, ownership: &'a Ownership, now: Instant) -> impl Iterator<Item = u16> + 'a {
        let of_nobody = move |owner: &Option<Uuid>| match owner {
            Some(owner) => self.members.get(owner).is_none_or(|member| member.lease_end <= now),
            None => true,
        };
        let is_free = move |(bucket, (owner, _)): &(&u16, &(Option<Uuid>, i64))| {
            let unknown = *owner == Some(ownership.owner) && !ownership.tokens.contains_key(*bucket);
            unknown || (*owner != Some(ownership.owner) && of_nobody(owner))
        };
        self.buckets.iter().filter(is_free).map(|(bucket, _)| *bucket)
    }

    fn take(&mut self, mut ownership: Ownership, joins: bool, now: Instant) -> Acquisition {
        let missing = self.standing(&ownership, now).share.saturating_sub(ownership.tokens.len());
        let taken: Vec<u16> = self.free(&ownership, now).take(missing).collect();
        for bucket in taken {
            if let Some((owner, token)) = self.buckets.get_mut(&bucket) {
                // In the real store each run has an id of its own: here a relay that has begun anew has died too.
                if owner.is_some() && (joins || *owner != Some(ownership.owner)) {
                    *self.deaths.entry(bucket).or_default() += 1;
                }
                (*owner, *token) = (Some(ownership.owner), *token + 1);
                ownership.tokens.insert(bucket, *token);
                if let Some(deaths) = self.deaths.get(&bucket) {
                    ownership.deaths.insert(bucket, *deaths);
                }
            }
        }
        Acquisition::Owned(ownership)
    }
}

impl Owners {
    /// Who owns how many buckets of the route under a lease that has not ended.
    pub(super) fn shares(&self, route: &str, now: Instant) -> BTreeMap<Uuid, usize> {
        let mut shares = BTreeMap::new();
        let Some(route) = self.routes.get(route) else { return shares };
        for owner in route.buckets.values().filter_map(|(owner, _)| *owner) {
            if route.members.get(&owner).is_some_and(|member| member.lease_end > now) {
                *shares.entry(owner).or_default() += 1;
            }
        }
        shares
    }

    /// The routes of relays at work that are not these.
    fn others_at_work(&mut self, routes: &Routes, now: Instant) -> Option<Routes> {
        for route in self.routes.values_mut() {
            route.expire(now);
        }
        let owners = self.routes.values().filter(|route| route.is_owned()).flat_map(|route| {
            let owns = |id: &Uuid| route.buckets.values().any(|(owner, _)| *owner == Some(*id));
            route.members.iter().filter(move |(id, _)| owns(id)).map(|(_, member)| &member.routes)
        });
        owners.into_iter().find(|other| *other != routes).cloned()
    }

    /// A relay that is a member already begins anew: what it owned is free for it.
    pub(super) fn acquire(&mut self, selection: &Selection, owner: Uuid, lease: Duration, now: Instant) -> Acquisition {
        if let Some(in_force) = self.others_at_work(selection.routes(), now) {
            return Acquisition::OtherRoutes { in_force: Some(in_force) };
        }
        self.joined += 1;
        let route = self.routes.entry(selection.name().to_owned()).or_default();
        if route.buckets.is_empty() {
            route.buckets = Buckets::ALL.iter().map(|bucket| (bucket, (None, 0))).collect();
        }
        let member = Member { lease_end: now + lease, joined: self.joined, routes: selection.routes().clone() };
        route.members.insert(owner, member);
        let joining =
            Ownership { selection: selection.clone(), owner, lease, tokens: BTreeMap::new(), deaths: BTreeMap::new() };
        route.take(joining, true, now)
    }

    pub(super) fn take_more(&mut self, ownership: &Ownership, now: Instant) -> Acquisition {
        if let Some(in_force) = self.others_at_work(ownership.selection.routes(), now) {
            return Acquisition::OtherRoutes { in_force: Some(in_force) };
        }
        match self.member(ownership) {
            Some(route) => route.take(ownership.clone(), false, now),
            None => Acquisition::Lost,
        }
    }

    /// The route of which this is a member, as it knows itself: one that has begun anew since is another.
    fn member(&mut self, ownership: &Ownership) -> Option<&mut Route> {
        let route = self.routes.get_mut(ownership.route())?;
        let taken_anew = |(bucket, token): (&u16, &i64)| {
            route.buckets.get(bucket).is_some_and(|row| row.0 == Some(ownership.owner) && row.1 != *token)
        };
        let is_member = route.members.contains_key(&ownership.owner) && !ownership.tokens.iter().any(taken_anew);
        is_member.then_some(route)
    }

    pub(super) fn renew(&mut self, ownership: &Ownership, now: Instant) -> Renewal {
        let Some(route) = self.member(ownership) else { return Renewal::Lost };
        if let Some(member) = route.members.get_mut(&ownership.owner) {
            member.lease_end = now + ownership.lease;
        }
        Renewal::Held(route.standing(ownership, now))
    }

    pub(super) fn give_back(&mut self, ownership: &Ownership, buckets: Buckets) {
        let Some(route) = self.routes.get_mut(ownership.route()) else { return };
        for (bucket, token) in ownership.tokens.iter().filter(|(bucket, _)| buckets.contains(**bucket)) {
            if let Some(row) = route.buckets.get_mut(bucket)
                && *row == (Some(ownership.owner), *token)
            {
                row.0 = None;
            }
        }
    }

    pub(super) fn release(&mut self, ownership: &Ownership) {
        let Some(route) = self.member(ownership) else { return };
        route.members.remove(&ownership.owner);
        let owned = route.buckets.iter_mut().filter(|(_, (owner, _))| *owner == Some(ownership.owner));
        for (bucket, (owner, _)) in owned {
            *owner = None;
            route.deaths.remove(bucket);
        }
    }

    pub(super) fn forget_deaths(&mut self, ownership: &Ownership, buckets: Buckets) {
        let Some(route) = self.routes.get_mut(ownership.route()) else { return };
        for bucket in ownership.only(buckets).tokens.keys() {
            if route.buckets.get(bucket).is_some_and(|(owner, _)| *owner == Some(ownership.owner)) {
                route.deaths.remove(bucket);
            }
        }
    }

    /// The most owners in a row of one of the route's buckets that ended without giving it back.
    pub(super) fn deaths(&self, route: &str) -> u32 {
        self.routes.get(route).and_then(|route| route.deaths.values().copied().max()).unwrap_or(0)
    }

    pub(super) fn end_leases(&mut self, route: &str, now: Instant) {
        for member in self.routes.get_mut(route).into_iter().flat_map(|route| route.members.values_mut()) {
            member.lease_end = now;
        }
    }

    /// Whether this ownership's token of the bucket is the last one.
    pub(super) fn is_current(&self, ownership: &Ownership, bucket: u16) -> bool {
        let last = self.routes.get(ownership.route()).and_then(|route| route.buckets.get(&bucket));
        last.map(|(_, token)| token) == ownership.tokens.get(&bucket)
    }
}
